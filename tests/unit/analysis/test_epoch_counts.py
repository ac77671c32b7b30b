"""What each epoch delivered, and which epochs' times must not be compared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kernel_monitor.analysis.loops import epoch_counts
from kernel_monitor.store import Snapshot
from tests.unit.sessions import Run, build


def counts(epoch: int, samples: int, planned: int | None, **fields: Any) -> dict[str, Any]:
    """One past epoch as a loader's state tells it."""
    some = {"lost": 0, "doubled": 0, "skipped": 0, "replaced": 0, "decoded": {}}
    return {"epoch": epoch, "batches": -(-samples // 32), "samples": samples, "planned": planned, **some, **fields}


def two_epochs(second: int, planned: int | None = 9469) -> Snapshot:
    """The first epoch whole, 296 batches; the second of so many samples; a third has just begun."""
    state = {"epoch": 2, "batch": 0, "samples": 0, "planned": planned}
    state["epochs"] = [counts(0, 9469, planned), counts(1, second, planned)]  # type: ignore[assignment]
    runs = [Run(1, 99, epoch=0, steps=296, step=0.25)]
    if second:
        runs.append(Run(80, 199, epoch=1, steps=-(-second // 32), step=0.25))
    return build(200, 1.0, states=[state], runs=runs)


def test_two_whole_epochs_may_be_compared() -> None:
    first, second, third = epoch_counts(two_epochs(9469))
    assert [(one.epoch, one.finished, one.problem) for one in (first, second)] == [(0, True, None), (1, True, None)]
    assert (first.batches, first.samples, first.planned) == (296, 9469, 9469)
    assert first.seconds == pytest.approx(296 * 0.25)
    assert third.problem == "delivered 0 of 9,469 samples so far"


@pytest.mark.parametrize(
    ("planned", "problem"),
    [(9469, "delivered 0 of 9,469 samples"), (None, "delivered 0 samples; epoch 1 delivered 9,469")],
)
def test_the_published_trap_is_flagged(planned: int | None, problem: str) -> None:
    """Two epochs, the second empty: the mean of their times is half of what an epoch takes."""
    first, second, _ = epoch_counts(two_epochs(0, planned))
    assert (first.problem, second.samples, second.finished, second.problem) == (None, 0, False, problem)
    assert math.isnan(second.seconds)


def test_a_source_without_a_plan_may_say_that_its_loop_went_to_the_end() -> None:
    whole = {"epoch": 0, "batch": 100, "samples": 3200, "planned": None}
    for finished, problem in ((True, None), (False, "delivered 3,200 samples so far")):
        (one,) = epoch_counts(build(10, states=[{**whole, "finished": finished}]))
        assert (one.finished, one.problem) == (finished, problem)


def test_an_epoch_that_was_left_early_is_flagged() -> None:
    (_, second, _) = epoch_counts(two_epochs(3200))
    assert (second.batches, second.finished, second.problem) == (100, False, "delivered 3,200 of 9,469 samples")
    assert second.seconds == pytest.approx(25)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"skipped": 69}, "delivered 9,400 of 9,469 samples, 69 skipped as unreadable"),
        ({"replaced": 69}, "delivered 9,400 of 9,469 samples, 69 replaced by replayed ones"),
        ({"lost": 69}, "delivered 9,400 of 9,469 samples, 69 lost"),
    ],
)
def test_why_an_epoch_delivered_less_is_told(fields: dict[str, int], problem: str) -> None:
    epochs = [counts(0, 9400, 9469, **fields)]
    state = {"epoch": 1, "batch": 296, "samples": 9469, "planned": 9469, "doubled": 3, "epochs": epochs}
    first, second = epoch_counts(build(10, states=[state]))
    assert (first.problem, first.finished) == (problem, "lost" not in fields)
    assert second.problem == "3 delivered twice"


def test_an_epoch_under_way_is_not_finished() -> None:
    (one,) = epoch_counts(build(60, runs=[Run(0, 10)]))
    assert (one.finished, one.problem) == (False, "delivered 3,200 of 20,480 samples so far")
    (ended,) = epoch_counts(build(60, states=[{"ended": True}], runs=[Run(0, 10)]))
    assert ended.problem == "delivered 3,200 of 20,480 samples"


def test_of_epochs_of_which_only_steps_are_known_those_are_whole_that_delivered_as_many() -> None:
    snapshot = build(70, runs=[Run(0, 60, epoch_batches=200), Run(60, 65, epoch=3)])
    found = epoch_counts(Snapshot(**{**vars(snapshot), "loaders": []}))
    assert [(one.epoch, one.batches, one.samples, one.planned) for one in found] == [
        *((number, 200, 6400, None) for number in range(3)),
        (3, 50, 1600, None),
    ]
    assert [(one.finished, one.problem) for one in found] == [
        *[(True, None)] * 3,
        (False, "delivered 1,600 samples; epoch 1 delivered 6,400"),
    ]
    assert found[1].seconds == pytest.approx(20)


def test_an_epoch_of_which_only_steps_are_known_is_held_against_its_loaders_plan() -> None:
    newest = {"epoch": 2, "batch": 10, "samples": 320, "planned": 6400}
    found = epoch_counts(build(60, states=[newest], runs=[Run(0, 40, epoch_batches=200)]))
    assert [one.problem for one in found] == [None, None, "delivered 320 of 6,400 samples so far"]
    (alone,) = epoch_counts(Snapshot(**{**vars(build(60, runs=[Run(0, 20)])), "loaders": []}))
    assert (alone.finished, alone.problem) == (False, "its plan is not known: only its steps are")


def test_what_was_not_kept_has_no_time_and_no_epochs() -> None:
    snapshot = build(60, runs=[Run(0, 60)])
    table = type(snapshot.steps)(snapshot.steps.loaders, snapshot.steps.rows[50:], dropped=50)
    (one,) = epoch_counts(Snapshot(**{**vars(snapshot), "steps": table}))
    assert math.isnan(one.seconds)
    empty = build(10)
    assert epoch_counts(Snapshot(**{**vars(empty), "loaders": []})) == ()
