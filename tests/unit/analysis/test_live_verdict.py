"""Warnings of the loop under way: what a change did to the training, and epochs that delivered nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from kernel_monitor import watch_loader
from kernel_monitor.analysis import live_verdict
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.runtime.current_verdict import CurrentVerdict, LoopWarnings
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps.measured_step import Step
from kernel_monitor.store import Snapshot, Store
from tests.unit.analysis.rules.test_host import swapped
from tests.unit.checks import not_none
from tests.unit.sessions import state


def stored(snapshot: Snapshot) -> Store:
    """The session as a running one has it."""
    store = Store(len(snapshot.time))
    schema: dict[str, Any] = {**snapshot.schema.to_json()}
    host = [one for one in schema["series"] if not one["name"].startswith("loader/")]
    keys = ("interval", "cpus", "gpus", "gpu_reason", "host")
    store.set_host({**{key: schema[key] for key in keys}, "series": host})
    store.set_loaders([{"id": "loader-1", "name": "train"}])
    names = snapshot.schema.names
    for at, row in zip(snapshot.time.tolist(), snapshot.values.tolist(), strict=True):
        store.append(at, row[: len(host)], dict(zip(names[len(host) :], row[len(host) :], strict=True)))
    for event in snapshot.events:
        fields = {key: value for key, value in event.items() if key not in ("id", "kind", "time")}
        store.add_event(event["kind"], event["time"], **fields)
    rows = snapshot.steps.of("loader-1")
    store.steps.add("loader-1", [Step(**{name: row[name].item() for name in Step._fields}) for row in rows])
    return store


def test_a_swap_is_warned_of_while_the_loop_runs_in_the_reports_words() -> None:
    snapshot = swapped()
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    found = not_none(CurrentVerdict(store, lambda _: None).judge(81.0, told))
    (said,) = analyse(snapshot).verdict.warnings
    assert found["warnings"] == [said]
    assert said.startswith("The swap from torchvision to dali-cpu made the training's own steps 1.12 ×")


def test_a_swap_is_judged_by_a_minute_on_each_side_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = swapped(seconds=100.0)
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    one = LoopWarnings(store, dict)
    (said,) = one.of("loader-1", 130.0, told)
    assert "250 and 4" in said, "at most a minute"
    monkeypatch.setattr(live_verdict, "segments", lambda *_: pytest.fail("it was looked at before"))
    assert one.of("loader-1", 140.0, told) == [said]
    store.add_event("mark", 139.0, label="another model")
    assert one.of("loader-1", 140.0, told) == [], "it is another loop"


def test_what_it_costs_the_samplers_reader_thread() -> None:
    """64 cores, and a minute on each side of the swap: every five seconds, for a minute."""
    snapshot = swapped(seconds=60.0, cpus=64, busy=80.0)
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    taken = []
    for number in range(5):
        begun = time.thread_time()
        LoopWarnings(store, dict).of("loader-1", 100.0 + number, told)
        taken.append(time.thread_time() - begun)
    assert np.median(taken) < 0.05


def test_an_epoch_that_delivered_nothing_is_warned_of_while_the_next_runs() -> None:
    store = Store()
    tracker = LoaderTracker(store, lambda _: 1.0, lambda *_args, **_fields: None)
    one = LoopWarnings(store, lambda: tracker.past)

    def said() -> list[str]:
        mine = [found for found in tracker.look() if found["name"] == "twice"]
        return [words for words in one.of("loader-1", 1.0, mine) if words.startswith("twice: ")]

    watched = watch_loader(iter(range(5)), name="twice")
    for _ in watched:
        assert said() == []
    assert said() == []
    for _ in range(3):
        assert list(watched) == []
    (words,) = said()
    assert words.startswith("twice: epochs 2, 3 and 4 delivered nothing; epoch 1 delivered 5 samples in 5 batches.")


def test_a_state_without_counts_is_no_epoch() -> None:
    bare: list[dict[str, Any]] = [{"id": "loader-1", "name": "train", "backend": "torchvision"}, state()]
    assert LoopWarnings(Store(), dict).of("loader-1", 1.0, bare) == []
