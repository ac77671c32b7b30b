"""What the monitor sees of loaders and of other sources of steps: series, steps in session time, states."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from kernel_monitor.runtime.loader_tracker import MOST_STEPS_A_SECOND, LoaderTracker
from kernel_monitor.steps import watched_loader
from kernel_monitor.steps.measured_step import Step
from kernel_monitor.steps.step_meter import Meter, StepClock, Totals
from kernel_monitor.store import Store

ZERO = 100.0


class Loop:
    """A source of steps under a test's control, its meter a real one."""

    def __init__(self, following: LoaderTracker) -> None:
        self.source = watched_loader.Source("train", lambda: 10, lambda: 320)
        self.meter: Meter = self.source.meter
        self.epoch = self.source.begin()
        following.refresh()

    def step(self, end: float, images: int = 32, phased: bool = False, **more: Any) -> None:
        phases = (0.0, 0.125, 0.25, 0.0625) if phased else ()
        self.epoch.batches += 1
        self.epoch.samples += images
        self.meter.add(images=images)
        self.meter.step(
            Step(ZERO + end, 0, self.epoch.batches - 1, images, 0.25, 1.0, *phases, **more), None, 14 * phased
        )


pytestmark = pytest.mark.usefixtures("no_other_sources")


def following(time: Callable[[float], float | None] = lambda stamp: stamp - ZERO) -> tuple[LoaderTracker, Store]:
    store = Store()
    return LoaderTracker(store, time, store.add_event), store


def test_a_watched_source_has_columns_a_state_and_epochs() -> None:
    one, store = following()
    loop = Loop(one)
    loop.step(1.0)
    assert [source.id for source in one.sources()] == [loop.source.id]
    assert one.loaders() == []
    (state,) = one.refresh()
    assert (state["name"], state["backends"], state["samples"], state["ended"]) == ("train", [], 32, False)
    assert store.schema.names == tuple(f"loader/{loop.source.id}/{part}" for part in ("images", "wait", "step"))
    (reported,) = one.reported()
    assert reported["epochs"] == []
    loop.epoch = loop.source.begin()
    assert [epoch["samples"] for epoch in one.reported()[0]["epochs"]] == [32]


def test_series_are_means_over_the_steps_of_the_window() -> None:
    one, _ = following()
    loop = Loop(one)
    name = f"loader/{loop.source.id}"
    assert one.values(0.5) == {f"{name}/images": 0.0}
    loop.step(1.0)
    loop.step(2.0)
    assert one.values(0.5) == {f"{name}/images": 128.0, f"{name}/wait": 250.0, f"{name}/step": 1000.0}
    assert one.values(0.5) == {f"{name}/images": 0.0}


def test_phases_bring_columns_of_their_own_and_say_nothing_of_what_was_never_seen() -> None:
    one, store = following()
    loop = Loop(one)
    name = f"loader/{loop.source.id}"
    loop.step(1.0)
    one.values(1.0)
    assert [bool(one.phased)] == [False]
    loop.step(2.0, phased=True)
    loop.step(3.0)
    loop.step(4.0, phased=True)
    assert set(one.values(1.0)) == {f"{name}/{part}" for part in ("images", "wait", "step")}, "no columns yet"
    assert [bool(one.phased)] == [True]
    version = store.schema.version
    one.refresh()
    assert store.schema.version == version + 1
    assert store.schema.loaders[0].phased
    loop.step(5.0, phased=True)
    loop.step(6.0)
    values = one.values(1.0)
    assert {part: values[f"{name}/{part}"] for part in ("forward", "backward", "optimizer", "other")} == {
        "forward": 125.0, "backward": 250.0, "optimizer": 62.5, "other": 312.5,
    }  # fmt: skip
    assert f"{name}/copy" not in values
    assert one.refresh() == one.refresh()
    assert store.schema.version == version + 1


def test_every_step_comes_once_in_session_time() -> None:
    one, _ = following()
    loop, ends = Loop(one), []
    for number in range(1, 41):
        loop.step(float(number), phased=number > 20)
        if number % 7 == 0:
            ends += [step for stepped in one.steps(0.5) for step in stepped.rows]
    (last,) = one.steps(0.5)
    assert (last.loader, last.dropped) == (loop.source.id, 0)
    ends += last.rows
    assert [step.end for step in ends] == [float(number) for number in range(1, 41)]
    assert [step.batch for step in ends] == list(range(40))
    assert math.isnan(ends[0].forward)
    assert ends[30].forward == 0.125
    assert one.steps(0.5) == []


def test_of_a_fast_loader_steps_are_chosen_evenly_and_the_others_counted() -> None:
    one, _ = following()
    loop = Loop(one)
    rows, dropped = [], 0
    for _ in range(4):
        for _ in range(1000):
            loop.step(0.001 * loop.meter.count)
        (stepped,) = one.steps(0.5)
        rows += stepped.rows
        dropped += stepped.dropped
    assert len(rows) == MOST_STEPS_A_SECOND * 2
    assert len(rows) + dropped == 4000
    assert {b.batch - a.batch for a, b in itertools.pairwise(rows)} == {10}


def test_what_was_overwritten_before_it_was_read_is_counted() -> None:
    one, _ = following()
    loop = Loop(one)
    for number in range(5000):
        loop.step(float(number))
    (stepped,) = one.steps(60.0)
    assert 4090 <= len(stepped.rows) <= 4096
    assert stepped.dropped == 5000 - len(stepped.rows)


def test_what_was_before_the_session_is_no_part_of_it() -> None:
    one, _ = following()
    loop = Loop(one)
    for number in range(10):
        loop.step(number - 20.0)
    one.begin()
    loop.step(1.0)
    (stepped,) = one.steps(0.5)
    assert [step.end for step in stepped.rows] == [1.0]
    assert stepped.dropped == 0
    assert one.values(0.5)[f"loader/{loop.source.id}/images"] == 64.0


def test_a_clock_that_jumped_drops_the_steps_that_have_no_place() -> None:
    odd = iter([1.0, math.nan, -5.0, math.inf, None, 2.0])
    one, _ = following(lambda _stamp: next(odd))
    loop = Loop(one)
    for number in range(6):
        loop.step(float(number))
    (stepped,) = one.steps(0.5)
    assert [step.end for step in stepped.rows] == [1.0, 2.0]
    assert stepped.dropped == 4


def test_a_source_that_ends_leaves_its_last_steps_and_its_state() -> None:
    one, store = following()
    loop = Loop(one)
    name = loop.source.id
    loop.step(1.0)
    one.refresh()
    loop.step(2.0)
    del loop
    gc.collect()
    assert one.sources() == []
    (state,) = one.refresh()
    assert state["ended"]
    assert one.values(0.5)[f"loader/{name}/images"] == 128.0
    (stepped,) = one.steps(0.5)
    assert [step.end for step in stepped.rows] == [1.0, 2.0]
    assert one.steps(0.5) == []
    assert one.values(0.5) == {}
    assert store.schema.loaders[0].id == name


def test_nothing_of_a_source_is_kept_but_its_state() -> None:
    one, _ = following()
    for _ in range(50):
        loop = Loop(one)
        loop.step(1.0, phased=True)
        one.values(0.1)
        one.steps(0.1)
        del loop
    gc.collect()
    one.refresh()
    one.steps(0.1)
    assert (one._meters, one._read, one._totals) == ({}, {}, {})
    assert len(one._states) <= 5


def test_a_wait_that_was_not_measured_is_missing_and_not_zero() -> None:
    one, _ = following()
    loop = Loop(one)
    clock = StepClock(loop.meter)
    clock.ask(ZERO + 1.0)
    clock.ask(ZERO + 1.5)  # no batch came from a loader: `with monitor.step()`
    values = one.values(0.5)
    assert f"loader/{loop.source.id}/wait" not in values
    assert values[f"loader/{loop.source.id}/step"] == pytest.approx(500.0)
    (stepped,) = one.steps(0.5)
    assert math.isnan(stepped.rows[0].wait)
    clock.got(8, ZERO + 1.7)
    clock.ask(ZERO + 2.0)  # and the next step knows its wait: the one before hides it no longer
    assert one.values(1.0)[f"loader/{loop.source.id}/wait"] == pytest.approx(200.0)


def test_the_totals_that_are_read_are_those_that_there_are() -> None:
    assert Totals._fields[4:] == (
        "phased", "copy_s", "forward_s", "backward_s", "optimizer_s", "phased_step_s", "phased_wait_s",
        "waited",
    )  # fmt: skip
    assert cast("Any", Totals(0, 0, 0.0, 0.0)).phased == 0
