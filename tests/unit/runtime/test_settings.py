"""What can be set, and the sentences that refuse the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime.settings import Settings
from kernel_monitor.store.charts import CHART_IDS


def test_the_defaults() -> None:
    assert Settings().to_json() == {
        "interval": 0.1, "history": 600.0, "charts": ["cpu", "gpu", "images", "wait"], "record": True,
        "record_to": None, "price": None, "node_price": None, "currency": "", "node_names": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("interval", "history", "capacity"),
    [(0.1, 600, 6000), (0.05, 600, 12_000), (0.2, 60, 300), (60, 60, 10), (0.3, 100, 334)],
)
def test_the_history_is_in_seconds_whatever_the_interval(interval: float, history: float, capacity: int) -> None:
    assert Settings().changed(interval=interval, history=history).capacity == capacity


def test_charts_come_in_their_own_order_and_by_their_words() -> None:
    assert Settings().changed(charts=["memory", "gpu", "memory"]).charts == ("gpu", "memory")
    assert Settings().changed(charts="all").charts == CHART_IDS
    assert Settings().changed(charts=["default", "io"]).charts == ("cpu", "gpu", "images", "wait", "io")
    assert Settings().changed(charts="all").changed(charts="default").charts == Settings().charts


def test_recording_is_a_word_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().changed(record=False).record is False
    monkeypatch.chdir(tmp_path)
    there = Settings().changed(record=False).changed(record="here")
    assert (there.record, there.record_to) == (True, str(tmp_path / "here"))
    assert there.changed(record=False).changed(record=True).record_to == str(tmp_path / "here")
    assert there.changed(record="") == Settings()


@pytest.mark.parametrize(
    ("given", "price", "currency"),
    [
        (2.5, 2.5, ""),
        (3, 3.0, ""),
        ("2.50", 2.5, ""),
        ("2.50 €", 2.5, "€"),
        ("2,5€", 2.5, "€"),
        (" $2.50 ", 2.5, "$"),
        ("USD 98.32", 98.32, "USD"),
        ("98.32 USD/h", 98.32, "USD"),
        (".5 CHF per hour", 0.5, "CHF"),
        ("2.345 kr", 2.345, "kr"),
        (0, 0.0, ""),
        ("0 €", 0.0, "€"),
    ],
)
def test_a_price_is_a_number_perhaps_with_a_currency(given: float | str, price: float, currency: str) -> None:
    found = Settings().changed(price=given)
    assert (found.price, found.currency) == (price, currency)
    assert Settings().changed(price=f"{price} {currency}") == found
    assert found.changed(price="") == found.changed(price="  ") == Settings()


def test_a_number_alone_keeps_the_currency() -> None:
    found = Settings().changed(price="$2").changed(price=4)
    assert (found.price, found.currency) == (4.0, "$")
    assert found.changed(interval=1).price == 4.0


@pytest.mark.parametrize("given", ["37.69 $ + 3.67", "$37.69+$3.67", "37.69$ + 3.67 / h"])
def test_a_price_may_have_that_of_each_cpu_machine(given: str) -> None:
    found = Settings().changed(price=given)
    assert (found.price, found.node_price, found.currency) == (37.69, 3.67, "$")
    assert found.changed(price="37.69 $").node_price is None
    assert found.changed(price="").to_json().get("node_price") is None


@pytest.mark.parametrize("given", ["2.50 € + 1 $", "2.50 + x", "2.50 € +"])
def test_prices_that_do_not_belong_together_are_refused(given: str) -> None:
    with pytest.raises(SessionError):
        Settings().changed(price=given)


def test_charts_of_what_is_measured_later_come_by_themselves_unless_somebody_chose() -> None:
    watched = replace(Settings(), measured=frozenset({"phases"}))
    assert watched.charts == ("cpu", "gpu", "images", "wait", "phases")
    assert watched.changed(charts=["cpu"]).charts == ("cpu",)
    assert watched.changed(charts=list(Settings().charts)).charts == Settings().charts
    assert watched.changed(charts=["cpu"]).changed(charts="default").charts == watched.charts
    both = replace(watched, measured=watched.measured | {"nodes"})
    assert both.charts == ("cpu", "gpu", "nodes", "images", "wait", "phases")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"interval": 0.01}, "The interval is 0.01 s; it must lie between 0.05 and 60 s."),
        ({"interval": float("nan")}, "The interval is nan s"),
        ({"interval": True}, "The interval is a number of seconds, not True."),
        ({"interval": "1"}, "The interval is a number of seconds, not '1'."),
        ({"history": 10}, "The history is 10 s; it must lie between 60 and 3600 s."),
        ({"history": 1e9}, "The history is 1e+09 s"),
        ({"charts": ["cpu", "weather"]}, "'weather'"),
        ({"charts": 3}, "The charts are a list of ids, or all, or default, not 3."),
        ({"charts": []}, "Name at least one chart."),
        ({"record": 3}, "record is true, false, or a folder for the recordings, not 3."),
        ({"price": -1}, "The price of an hour is -1; it must be 0 or more."),
        ({"price": "-1 €"}, "The price of an hour is -1; it must be 0 or more."),
        ({"price": float("nan")}, "The price of an hour is nan; it must be 0 or more."),
        ({"price": float("inf")}, "The price of an hour is inf; it must be 0 or more."),
        ({"price": True}, "The price of an hour is a number, perhaps with a currency, not True: 2.50, 2.50 €, $2.50;"),
        ({"price": "cheap"}, "not 'cheap'"),
        ({"price": "$2.50 €"}, "not '$2.50 €'"),
        ({"price": "2,500 €"}, "not '2,500 €'"),  # two and a half, or two thousand and five hundred?
        ({"price": "1e400"}, "not '1e400'"),
        ({"price": "9" * 400}, "The price of an hour is inf"),
        ({"price": [2.5]}, "not [2.5]"),
    ],
)
def test_what_cannot_be_set_is_refused_in_a_sentence_and_changes_nothing(given: dict[str, Any], says: str) -> None:
    monitor = Monitor()
    before = monitor.settings
    with pytest.raises(SessionError) as refused:
        monitor.configure(**{"interval": 5, **given})
    assert says in str(refused.value)
    assert monitor.settings == before


def test_a_monitor_that_does_not_run_takes_settings_for_later() -> None:
    monitor = Monitor()
    assert monitor.configure(interval=0.5, history=120, charts=["cpu", "io"], record=False)["interval"] == 0.5
    assert monitor.settings["charts"] == ["cpu", "io"]
    assert (monitor.store.schema.capacity, monitor.store.schema.charts) == (240, ("cpu", "io"))
    assert monitor.recording["state"] == "off"


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ("node-2", ("node-2",)),
        (["node-2", "node-1", "node-2"], ("node-2", "node-1")),
        (["node-2", "all"], ("all",)),
        ("none", ("none",)),
        ([], ("none",)),
        ("default", None),
    ],
)
def test_machines_are_unfolded_by_their_ids_and_by_words(wanted: Any, kept: tuple[str, ...] | None) -> None:
    assert Settings().changed(unfolded=wanted).unfolded == kept


@pytest.mark.parametrize("wanted", [3, ["a/b"], [1], {"node-1": True}])
def test_what_names_no_machine_is_refused(wanted: Any) -> None:
    with pytest.raises(SessionError, match="unfolded is a list of ids such as node-1"):
        Settings().changed(unfolded=wanted)
