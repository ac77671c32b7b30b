"""Which loop a session is about: it trains and evaluates, and what is asked about is the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.frames import Frames
from kernel_monitor.analysis.loops import Loop, LoopTimes, loops_of_segments, loops_of_steps, secondary
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.steps.measured_step import NO_GRADIENTS, WARM_UP
from kernel_monitor.store import Snapshot
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, calibrated, live, state, stripped, switch

TRAIN, VAL = "loader-1", "loader-2"
NAMES = {TRAIN: "train", VAL: "val"}


def epochs(flags: int, *, evaluation: float = 4.0, count: int = 4) -> list[Run]:
    """Training of 20 s that waits little, evaluation that waits for nearly all of its time; one after the other."""
    runs = []
    for number in range(count):
        start = number * (20 + evaluation)
        runs.append(Run(start, start + 20, step=0.1, wait=0.004, loader=TRAIN, epoch=number))
        runs.append(Run(start + 20, start + 20 + evaluation, step=0.05, wait=0.045, loader=VAL, flags=flags))
    return runs


@pytest.mark.parametrize(
    ("loops", "aside"),
    [
        ([], set()),
        ([Loop("a", 0, 9, 9, evaluates=True)], set()),
        ([Loop("a", 0, 9, 9, evaluates=False), Loop("b", 9, 99, 90, evaluates=True)], {"b"}),
        # one after the other: neither stands beside the other
        ([Loop("a", 0, 50, 50, evaluates=False), Loop("b", 50, 60, 10, evaluates=False)], set()),
        # in turns
        ([Loop("a", 0, 50, 40, evaluates=False), Loop("b", 20, 60, 10, evaluates=False)], {"b"}),
        # as long as each other
        ([Loop("a", 0, 50, 25, evaluates=False), Loop("b", 0, 50, 25, evaluates=False)], set()),
        # of evaluations alone
        ([Loop("a", 0, 50, 40, evaluates=True), Loop("b", 20, 60, 10, evaluates=True)], {"b"}),
        # one evaluation of two trainings
        (
            [
                Loop("a", 0, 50, 40, evaluates=False),
                Loop("b", 60, 80, 15, evaluates=False),
                Loop("v", 20, 90, 10, evaluates=False),
            ],
            {"v"},
        ),
        # a loader without a whole step is none
        ([Loop("a", 0, 0, 0, evaluates=False), Loop("b", 20, 60, 10, evaluates=True)], set()),
    ],
)
def test_what_stands_beside_what(loops: list[Loop], aside: set[str]) -> None:
    assert secondary(loops) == aside


@pytest.mark.parametrize("flags", [NO_GRADIENTS, 0])
def test_the_verdict_of_a_session_is_that_of_its_training(flags: int) -> None:
    snapshot = build(96, runs=epochs(flags), loaders=NAMES, states=[{}, {}])
    found = analyse(snapshot)
    assert [one.evaluates for one in found.segments] == [False, bool(flags)]
    assert found.verdict.segment == "train/1"
    assert found.verdict.shares["wait"] == pytest.approx(0.04, abs=0.01)
    assert [one.kind for one in found.verdicts][1] == "input-bound"
    assert found.feeding is not None
    assert found.feeding.segment == "train/1"


@pytest.mark.parametrize(
    ("runs", "events", "segment"),
    [
        ([Run(0, 30, loader=TRAIN), Run(30, 90, loader=VAL, flags=NO_GRADIENTS)], [], "train/1"),
        ([Run(0, 60, loader=TRAIN), Run(60, 90, loader=VAL)], [], "val/1"),
        (
            [*epochs(0), Run(96, 106, loader=TRAIN), Run(106, 110, step=0.05, loader=VAL)],
            [switch(96.1, "torchvision", "dali-cpu", asked=96.0)],
            "train/2",
        ),
    ],
    ids=["a last test, longer than the training", "the newer of two experiments", "after a switch"],
)
def test_the_segment_that_a_session_is_about(runs: list[Run], events: list[dict[str, Any]], segment: str) -> None:
    assert analyse(build(110, runs=runs, loaders=NAMES, events=events)).verdict.segment == segment


def test_the_loops_of_steps_are_those_of_segments() -> None:
    snapshot = build(96, runs=epochs(NO_GRADIENTS), loaders=NAMES)
    by_steps = {one.loader: one for one in loops_of_steps(snapshot.steps, 0, 96)}
    for one in loops_of_segments(analyse(snapshot).segments):
        other = by_steps[one.loader]
        assert other.evaluates == one.evaluates
        assert other[1:4] == pytest.approx(one[1:4], abs=0.2)
    assert by_steps[VAL].evaluates


@pytest.mark.parametrize("evaluation", [1.5, 10.0])  # shorter than any pause, and longer
def test_what_a_switch_changed_is_what_it_changed_of_the_training(evaluation: float) -> None:
    each = 20 + evaluation
    runs = []
    for number, step in enumerate((0.1, 0.1, 0.05, 0.05)):
        start = number * each
        runs.append(Run(start, start + 20, step=step, wait=0.6 * step, loader=TRAIN, epoch=number))
        runs.append(Run(start + 20, start + each, step=0.1, loader=VAL, flags=NO_GRADIENTS))
    asked = 2 * each + 0.1
    events = [switch(asked + 0.1, "torchvision", "dali-cpu", asked=asked)]
    snapshot = build(4 * each, runs=runs, loaders=NAMES, states=[{"backend": "dali-cpu"}, {}], events=events)
    rate = next(row for row in stripped(snapshot)["rows"] if row["unit"] == "images/s")
    assert (rate["before"], rate["after"]) == pytest.approx((320, 640), rel=0.02)


@pytest.mark.parametrize("step", [lambda _number: 0.5, lambda number: 0.15 if number % 4 else 1.2])  # in bursts
def test_two_loaders_of_one_loop_do_not_pause_for_each_other(step: Callable[[int], float]) -> None:
    runs = [Run(0, 60, step=step, wait=0.1, loader=TRAIN), Run(0.2, 60, step=step, wait=0.1, loader=VAL)]
    snapshot = build(60, runs=runs, loaders=NAMES)
    for loader in NAMES:
        frames = Frames(snapshot)
        assert frames.window[frames.delivery_rows(loader)].sum() == pytest.approx(59, abs=1)


def taken(kernel: float, while_evaluating: float, evaluation: float = 4.0) -> object:
    """%, of a core, of the kernel: as a function of time."""
    return lambda time: kernel + (while_evaluating - kernel) * (time % (20 + evaluation) > 20.05)


@pytest.mark.parametrize("evaluation", [2.0, 10.0])  # shorter than a pause, and longer
def test_what_an_evaluation_takes_of_the_cores_is_not_the_training_s(evaluation: float) -> None:
    runs = epochs(NO_GRADIENTS, evaluation=evaluation, count=3)
    until = 2 * (20 + evaluation) + 20
    snapshot = build(
        until,
        runs=runs,
        loaders=NAMES,
        kernel=taken(20, 100, evaluation),  # type: ignore[arg-type]
        workers=taken(30, 0, evaluation),  # type: ignore[arg-type]
    )
    train = analyse(snapshot).segments[0]
    assert train.cpu_seconds == pytest.approx(0.5 * 60, rel=0.03)
    assert train.workers_cpu_seconds == pytest.approx(0.3 * 60, rel=0.03)


def test_while_it_evaluates_the_gain_asked_for_is_that_of_the_training() -> None:
    states = [state(TRAIN, "train", backend="torchvision", **calibrated(0.5 * 0.165)), state(VAL, "val")]
    runs = [
        Run(0, 40, step=0.1, wait=0.06, loader=TRAIN),
        Run(40, 60, step=0.05, wait=0.0, loader=VAL, flags=NO_GRADIENTS),
    ]
    snapshot = build(
        60,
        cpus=2,
        busy=lambda time: 99.0 - 60 * (time > 40.05),
        runs=runs,
        loaders=NAMES,
        kernel=lambda time: 30.0 + 70 * (time > 40.05),
        workers=lambda time: 165.0 * (time < 40.05),
    )
    asked = not_none(live(snapshot, states=states, loader=TRAIN))
    assert (asked["loader"], asked["kind"], asked["steps"]) == (TRAIN, "input-bound", 400)
    gain = next(one for one in asked["gains"] if one["action"] == "dali-cpu")
    # (30 + 0.5 x 165) ms of processor time on two cores, where (30 + 165) took 100 ms
    assert gain["low"] < 1 - 112.5 / 195 < gain["high"]
    assert not_none(live(snapshot, states=states))["loader"] == TRAIN, "the evaluation under way is beside it"
    assert live(snapshot, states=states, loader="loader-9") is None


def turns() -> Snapshot:
    """A training that waits for its data, and after each epoch an evaluation that only counts its batches."""
    runs = []
    for epoch in range(4):
        at = 20.0 * epoch
        runs.append(Run(at, at + 15, step=0.1, wait=0.08, loader=TRAIN, epoch=epoch))
        runs.append(Run(at + 15, at + 20, step=0.1, wait=0.0999, loader=VAL, epoch=epoch))
    return build(80, cpus=2, busy=99.0, kernel=12.0, workers=171.0, runs=runs, loaders=NAMES, states=[calibrated(0.05)])


def test_a_loop_that_takes_turns_with_a_training_is_not_advised_upon() -> None:
    snapshot = turns()
    told = not_none(live(snapshot))
    assert told["loader"] == TRAIN, "though the evaluation runs"
    assert told["sentence"].endswith(" That is of the last 60 s.")
    aside = not_none(live(snapshot, loader=VAL))
    assert aside["offer"] is None
    words = "This loop takes turns with that of train, which trains: advice is on that one."
    assert aside["advice"] == words
    found = analyse(snapshot)
    assert {verdict.segment: verdict.advice == words for verdict in found.verdicts} == {"train/1": False, "val/1": True}
    assert (found.verdict.segment, found.verdict.kind) == ("train/1", "input-bound")


def test_the_main_loop_is_known_however_long_the_evaluation_takes() -> None:
    runs = [Run(0, 200, step=0.1, loader=TRAIN), Run(200, 300, step=0.1, loader=VAL, flags=NO_GRADIENTS)]
    snapshot = build(300, interval=1.0, runs=runs, loaders=NAMES)
    loops = LoopTimes()
    assert loops.main() is None
    for end in range(10, 310, 10):
        at = int(np.searchsorted(snapshot.steps.rows["end"], end))
        table = replace(snapshot.steps, rows=snapshot.steps.rows[:at])
        loops.add(replace(table, rows=table.rows[table.rows["end"] > loops.since]))
    assert (loops.main(), set(loops.secondary_ids())) == (TRAIN, {VAL})


def test_the_loop_that_trains_is_the_same_one_for_verdict_and_advice() -> None:
    """Most of the training's steps do not count, so that less time of it is in segments than of the other loop."""
    runs = []
    for at in range(0, 60, 6):
        runs.append(Run(at, at + 4, step=0.1, wait=0.06, flags=WARM_UP if at < 42 else 0))
        runs.append(Run(at + 4, at + 6, step=0.05, wait=0.05, loader=VAL))
    found = analyse(build(62, runs=runs, loaders=NAMES))
    assert found.verdict.segment == "train/1"
    (beside_it,) = [verdict for verdict in found.verdicts if verdict.segment == "val/1"]
    assert "takes turns with that of train" in beside_it.advice
