"""A real sampler and a real loop: its steps, marks and prices are in the snapshot, and in the recording."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.record.reader import open_session
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps.measured_step import PHASES, Step
from kernel_monitor.store import Snapshot
from tests.unit.checks import wait_for

pytestmark = pytest.mark.usefixtures("no_other_sources")


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def monitor(told: list[dict[str, Any]]) -> Iterator[Monitor]:
    one = Monitor()
    one.publisher.connect(lambda kind, content, buffers=None: told.append(content) if kind.endswith("notice") else None)
    yield one
    one.stop()
    one.publisher.connect(None)


def loop(monitor: Monitor, name: str, steps: int) -> None:
    """Steps of 30 ms: 10 of copying, 10 forward, the rest nothing that has a name."""
    for _ in range(steps):
        with monitor.step(name) as step:
            step.got(16)
            with monitor.phase("copy"):
                time.sleep(0.01)
            with monitor.phase("forward"):
                time.sleep(0.01)
            time.sleep(0.01)


def same(table: Any, other: Any) -> None:
    for name in Step._fields:
        assert np.array_equal(table[name], other[name], equal_nan=table[name].dtype.kind == "f"), name


@pytest.mark.parametrize("record", [True, False])
def test_the_steps_of_a_loop_are_in_the_snapshot_and_in_the_recording(
    monitor: Monitor, tmp_path: Path, record: bool
) -> None:
    monitor.start(record=str(tmp_path) if record else False)
    wait_for(lambda: monitor.store.last_seq > 0)
    loop(monitor, "train", 50)
    snapshot = monitor.snapshot()  # of this moment: the newest steps have not waited for a frame
    table = snapshot.steps
    (source,) = table.loaders
    steps = table.of(source)
    # The step under way ends when the next begins.
    assert (np.diff(steps["batch"].astype(int)) == 1).all()
    assert 49 <= len(steps) <= 50
    assert (steps["images"] == 16).all()
    assert (np.diff(steps["end"]) >= 0.03).all()
    assert snapshot.time[0] - 1 < steps["end"][0] < steps["end"][-1] < snapshot.time[-1] + 1
    for phase in ("copy", "forward"):
        assert 0.009 < np.nanmedian(steps[phase]) < 0.03
    assert table.dropped == 0
    assert Snapshot.from_bytes(snapshot.to_bytes()).steps.rows.tobytes() == table.rows.tobytes()
    assert [state["name"] for state in snapshot.loaders] == ["train"]
    wait_for(lambda: f"loader/{source}/forward" in monitor.store.schema.columns)
    monitor.stop()
    if record:
        found = open_session(tmp_path)
        with_file = found.snapshot().steps.of(source)
        same(with_file[: len(steps)], steps)
        assert found.check() == []
    else:
        assert list(tmp_path.iterdir()) == []


def test_phases_become_series_and_a_chart_that_pages_are_told_of(
    monitor: Monitor, tmp_path: Path, told: list[dict[str, Any]]
) -> None:
    monitor.start(record=str(tmp_path))
    assert monitor.settings["charts"] == ["cpu", "gpu", "images", "wait"]
    wait_for(lambda: monitor.store.last_seq > 0)
    entry = next(chart for chart in monitor.publisher.state()["charts"] if chart["id"] == "phases")
    assert (entry["available"], entry["reason"]) == (False, "no model is watched: monitor.watch(model, optimizer)")
    loop(monitor, "train", 40)
    wait_for(lambda: "phases" in monitor.settings["charts"])
    wait_for(lambda: told[-1]["kind"] == "configured")
    assert told[-1]["settings"]["charts"] == ["cpu", "gpu", "images", "wait", "phases"]
    told.clear()
    loop(monitor, "train", 40)
    assert told == [], "once"
    snapshot = monitor.snapshot()
    schema = snapshot.schema
    assert "phases" in schema.charts
    (loader,) = schema.loaders
    assert loader.phased
    shown = {
        part: float(np.nanmedian(snapshot.values[:, schema.columns[f"loader/{loader.id}/{part}"]]))
        for part in ("copy", "forward", "other", "step")
    }
    assert 9 < shown["copy"] < 30
    assert 9 < shown["forward"] < 30
    assert shown["copy"] + shown["forward"] + shown["other"] == pytest.approx(shown["step"], rel=0.25)
    for part in ("backward", "optimizer"):  # nothing of the kind was ever seen
        assert np.isnan(snapshot.values[:, schema.columns[f"loader/{loader.id}/{part}"]]).all()
    monitor.stop()
    found = open_session(tmp_path)
    assert {f"loader/{loader.id}/{part}" for part in ("copy", "forward", "other")} <= set(found.schema.columns)
    assert found.schema.series[found.schema.columns[f"loader/{loader.id}/other"]].unit == "ms"
    assert found.schema.loaders[0].phased
    assert set(PHASES) <= set(found.steps())


def test_the_status_bar_has_a_rate_while_a_loop_runs_and_none_once_it_has_ended(monitor: Monitor) -> None:
    numbers: Any = range(80)
    loader = DataLoader(numbers, 4)
    monitor.start(record=False)
    wait_for(lambda: monitor.store.last_seq > 0)
    rates = []
    for _ in loader:
        time.sleep(0.05)
        rates.append(monitor.publisher.glance()["images"])
    assert 0 < (rates[-1] or 0) < 90
    wait_for(lambda: monitor.publisher.glance()["images"] is None)
    assert len(loader) == 20  # it is still there


def test_charts_that_somebody_chose_stay(monitor: Monitor) -> None:
    monitor.start(record=False, charts=["cpu", "wait"])
    wait_for(lambda: monitor.store.last_seq > 0)
    loop(monitor, "train", 20)
    wait_for(lambda: any(loader.phased for loader in monitor.store.schema.loaders))
    time.sleep(0.3)
    assert monitor.settings["charts"] == ["cpu", "wait"]


def test_a_mark_and_a_price_are_events_and_facts_live_and_recorded(
    monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(SessionError, match="start the monitor first"):
        monitor.mark("too early")
    monitor.start(record=str(tmp_path), price="2.50 €")
    wait_for(lambda: monitor.store.last_seq > 0)
    event = monitor.mark("  augment\n x12 ")
    assert (event["kind"], event["label"]) == ("mark", "augment x12")
    assert 0 < event["time"] < 60
    for bad, says in (("", "needs words"), (" \n", "needs words"), ("x" * 201, "200 letters at most, not 201")):
        with pytest.raises(MonitorError, match=says):
            monitor.mark(bad)
    monitor.configure(price=0)
    monitor.configure(interval=0.2)
    monitor.configure(price="")
    monitor.configure(price="3 $")
    snapshot = monitor.snapshot()
    kinds = [(event["kind"], event.get("per_hour"), event.get("currency")) for event in snapshot.events]
    assert kinds == [
        ("price", 2.5, "€"),
        ("mark", None, None),
        ("price", 0.0, "€"),
        ("price", None, ""),
        ("price", 3.0, "$"),
    ]
    wanted = {"price": 3.0, "currency": "$", "rank": 3, "world_size": 8, "interval": 0.2}
    assert wanted.items() <= snapshot.facts.items()
    monitor.stop()
    found = open_session(tmp_path)
    assert [(event["kind"], event["time"]) for event in found.events()] == [
        (event["kind"], event["time"]) for event in snapshot.events
    ]
    assert wanted.items() <= found.facts.items()


def test_a_process_that_trains_alone_has_no_rank(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "many")
    monitor.start(record=False)
    wait_for(lambda: monitor.store.last_seq > 0)
    facts = monitor.snapshot().facts
    assert not {"rank", "world_size"} & facts.keys()
    assert (facts["price"], facts["currency"]) == (None, "")


def test_what_was_done_while_nothing_was_measured_is_no_part_of_it(monitor: Monitor) -> None:
    loop(monitor, "train", 5)
    monitor.start(record=False)
    wait_for(lambda: monitor.store.last_seq > 2)
    assert len(monitor.snapshot().steps) == 0
    monitor.stop()
    loop(monitor, "train", 5)
    monitor.start(record=False)
    seen = monitor.store.last_seq
    wait_for(lambda: monitor.store.last_seq > seen + 2)
    assert len(monitor.snapshot().steps) <= 1  # the one that was under way
    loop(monitor, "train", 10)
    rows = monitor.store.rows(seen)
    images = rows.values[:, [k for k, name in enumerate(rows.schema.names) if name.endswith("/images")]]
    assert 9 <= len(monitor.snapshot().steps) <= 11
    assert np.nanmax(images) < 5000, "no peak of what was delivered before"
