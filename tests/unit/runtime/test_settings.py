"""What can be set, and the sentences that refuse the rest."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
        ({"history": 1e9}, "The history is 1000000000.0 s; it must lie between 60 and 3600 s."),
        ({"charts": ["cpu", "weather"]}, "'weather'"),
        ({"charts": 3}, "The charts are a list of ids, or all, or default, not 3."),
        ({"charts": []}, "Name at least one chart."),
        ({"record": 3}, "record is true, false, or a folder for the recordings, not 3."),
        ({"price": -1}, "The price of an hour is -1; it must lie between 0 and 1e+12."),
        ({"price": "-1 €"}, "The price of an hour is -1.0; it must lie between 0 and 1e+12."),
        ({"price": float("nan")}, "The price of an hour is nan; it must lie between 0 and 1e+12."),
        ({"price": float("inf")}, "The price of an hour is inf; it must lie between 0 and 1e+12."),
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


class Odd:
    """An object whose own code raises, as anybody's may."""

    def _fail(self, *_: Any) -> Any:
        raise ValueError("of somebody else")

    __repr__ = __eq__ = __bool__ = __len__ = __iter__ = __float__ = __fspath__ = _fail
    __hash__ = object.__hash__


def _nested(times: int) -> Any:
    value: Any = []
    for _ in range(times):
        value = [value]
    return value


ODD: list[Any] = [
    True, -1, 1 << 70, 10**400, -(10**400), 10**5000, 1e300, -1e300, float("nan"), float("inf"), "", "x" * 10_000,
    "half \ud800", "\x00", "~nobody/there", "+1" * 2000, "1" + " " * 4000 + "z" * 9, "tcp://" + "x" * 10_000 + ":1",
    "x" * 10_000 + ":1", "tensorboard:" + "x\x00" * 3000, b"cpu", {1, 2}, [], {}, ["x" * 10_000] * 5000,
    ["node-1"] * 5000, dict.fromkeys(range(5000)), _nested(1000), _nested(100_000), np.zeros(3), np.float32(1), Odd(),
    [Odd()], object,
]  # fmt: skip


def test_odd_values_are_taken_or_refused_in_a_short_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monitor = Monitor()
    sentences = []
    for name in inspect.signature(Monitor.configure).parameters.keys() - {"self"}:
        for value in ODD:
            try:
                monitor.configure(**{name: value})
            except SessionError as error:
                sentences.append(str(error))
    monitor.configure(http=False, ray="", send_files="auto", log_to="")
    assert len(sentences) > 300
    assert [words for words in sentences if not 20 < len(words) <= 300 or "x" * 81 in words] == []
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SessionError, match="'here' cannot be found, as the working directory was deleted"):
        monitor.configure(record="here")


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
