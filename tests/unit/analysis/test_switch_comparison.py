"""The sentence at the end of a training: what the switch brought, or why that cannot be said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kernel_monitor.analysis import analyse, switch_strip
from kernel_monitor.analysis.switch_comparison import SwitchComparison, comparison
from kernel_monitor.errors import MonitorError
from kernel_monitor.runtime import Monitor
from kernel_monitor.store import Snapshot
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, switch

TORCH, DALI = "torchvision", "dali-cpu"


def session(*parts: tuple[str, float, float, float], **others: Any) -> Snapshot:
    """One loader with batches of 32; each part: its engine, s, step and wait in s. There is a switch between them."""
    runs, events, at = [], [], 0.0
    for place, (engine, seconds, step, wait) in enumerate(parts):
        if place:
            events.append(switch(at, parts[place - 1][0], engine, asked=at - 0.001))
        runs.append(Run(at, at + seconds, step=step, wait=wait))
        at += seconds
    return build(at, runs=runs, events=[*events, *others.pop("events", [])], **others)


def said(snapshot: Snapshot, loader: str | None = None) -> str:
    return str(comparison(snapshot, loader))


def test_a_switch_that_paid() -> None:
    found = comparison(session((TORCH, 20, 0.3, 0.21), (DALI, 20, 0.2, 0.06)))
    assert found.before is not None
    assert found.after is not None
    assert found.switch is not None
    assert (found.switch["source"], found.switch["target"]) == (TORCH, DALI)
    assert found.faster == pytest.approx(1.5, rel=0.01)
    assert found.before.samples / 32 == pytest.approx(round(found.before.samples / 32), abs=1e-3)
    assert found.sentence == (
        "dali-cpu took over from torchvision at batch 100 of epoch 1: 107 → 160 images/s (1.50 × faster), waiting for "
        f"data 70 → 30 % of each step (300 → 200 ms); measured over {found.before.samples:,} images in 20 s, then "
        f"{found.after.samples:,} in 19 s."
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [(0.35, "(1.17 × slower: torchvision is the better one here)"), (0.298, "(about as fast, 1.01 ×)")],
)
def test_a_switch_that_did_not_pay(step: float, words: str) -> None:
    assert words in said(session((TORCH, 20, 0.3, 0.21), (DALI, 20, step, 0.2)))


@pytest.mark.parametrize(
    ("parts", "amounts"),
    [
        (((TORCH, 20, 0.3, 0.21), (DALI, 0.9, 0.2, 0.06)), " in 20 s before, 0 images in 0 s after)"),
        (((TORCH, 1.5, 0.3, 0.21), (DALI, 20, 0.2, 0.06)), "images in 1.2 s before, "),
        (((TORCH, 20, 0.3, 0.21), (DALI, 12, 2.0, 0.06)), "images in 8.0 s after)"),
    ],
    ids=["no step after", "short before", "few steps after"],
)
def test_too_little_on_a_side(parts: Any, amounts: str) -> None:
    found = comparison(session(*parts))
    assert "took over from torchvision at batch 100 of epoch 1, but too little was measured to compare (" in str(found)
    assert amounts in str(found)
    assert math.isnan(found.faster)


def test_several_switches() -> None:
    back = session((TORCH, 20, 0.3, 0.21), (DALI, 20, 0.2, 0.06), (TORCH, 20, 0.3, 0.21))
    assert said(back).startswith("torchvision took over from dali-cpu at batch 100 of epoch 1: 160 → 107 images/s")
    assert said(back).endswith(" This was the last of 2 switches.")
    hasty = session((TORCH, 20, 0.3, 0.21), (DALI, 20, 0.2, 0.06), (TORCH, 1, 0.3, 0.21))
    assert said(hasty).startswith("dali-cpu took over from torchvision at batch 100 of epoch 1: 107 → ")
    assert said(hasty).endswith(" This was switch 1 of 2; after the later ones too little was measured to compare.")


def tuned(snapshot: Snapshot, began: float, at: float) -> Snapshot:
    """The session with a tune of its loader that began and ended then."""
    result = {"kind": "tune", "began": began}
    event = {"kind": "diagnosis", "time": at, "loader": "loader-1", "state": "done", "result": result}
    return replace(snapshot, events=[*snapshot.events, event])


def test_what_a_tune_only_tried_stands_on_no_side_and_no_rule_judges_it() -> None:
    tries = session((TORCH, 20, 0.3, 0.21), ("threads", 4, 0.2, 0.19), (TORCH, 4, 0.6, 0.5), (DALI, 20, 0.15, 0.03))
    whole, without = analyse(tuned(tries, 19.0, 29.0)), analyse(tries)
    assert [segment.tried for segment in whole.segments] == [False, True, True, False]
    (brought,) = whole.changes
    assert (brought.before, brought.after, brought.switch["target"]) == ("train/1", "train/4", DALI)  # type: ignore[index]
    assert brought.faster == pytest.approx(2, rel=0.02)
    assert {found.segment for found in whole.findings} <= {None, "train/1", "train/4"}
    assert len(without.changes) == 3
    assert "train/2" in {found.segment for found in without.findings}
    # The engine that it keeps began within it and delivers after it: that one counts.
    assert not analyse(tuned(tries, 19.0, 28.5)).segments[-1].tried


def test_a_tune_that_ends_on_other_knobs_of_another_engine_is_compared_with_what_was_before_it() -> None:
    knobs = {"kind": "knobs", "time": 30.0, "loader": "loader-1", "workers": 2, "prefetch": 2, "threads": 4}
    first = {**knobs, "time": 0.1, "threads": 2}
    found = analyse(tuned(session((TORCH, 20, 0.3, 0.21), (DALI, 30, 0.15, 0.03), events=[first, knobs]), 19.0, 31.0))
    assert [segment.began_by for segment in found.segments] == ["knobs", "switch", "knobs"]
    (brought,) = found.changes
    assert brought.switch is not None
    assert (brought.switch["source"], brought.switch["target"]) == (TORCH, DALI)
    assert brought.faster == pytest.approx(2, rel=0.02)


def test_no_switch() -> None:
    assert said(session((TORCH, 20, 0.3, 0.21))) == (
        "No switch took place: torchvision delivered 107 images/s, waiting for data 70 % of each step "
        "(2,112 images in 20 s)."
    )
    failed = {"kind": "switch-failed", "time": 9.0, "loader": "loader-1", "target": DALI, "message": "out of memory."}
    assert "No switch took place (dali-cpu failed: out of memory): torchvision delivered" in said(
        session((TORCH, 20, 0.3, 0.21), events=[failed])
    )


def test_replayed_batches_are_called_so_and_stand_for_nothing_beside_a_real_engine() -> None:
    found = said(session((TORCH, 20, 0.3, 0.21), ("synthetic", 20, 0.1, 0.001)))
    assert "(3.00 × faster; synthetic replays a few batches: the ceiling of any loader)" in found
    found = said(session((TORCH, 12, 0.3, 0.21), (DALI, 12, 0.2, 0.06), ("synthetic", 60, 0.1, 0.001)))
    assert found.startswith("dali-cpu took over from torchvision")


def test_of_several_loaders_the_one_that_switched_is_named() -> None:
    runs = [Run(0, 20, step=0.3, wait=0.2), Run(20, 40, step=0.2, wait=0.1), Run(0, 40, loader="loader-2", epoch=1)]
    snapshot = build(40, runs=runs, events=[switch(20, TORCH, DALI, asked=19.999)])
    assert said(snapshot).startswith("train: dali-cpu took over from torchvision")
    assert said(snapshot, "second").startswith("second: No switch took place: torchvision delivered 320 images/s")
    with pytest.raises(MonitorError, match=r"No loader is called 'test'. The loaders are: train, second."):
        said(snapshot, "test")
    runs = [Run(0, 10, loader="loader-1"), Run(10, 30, loader="loader-2")]
    snapshot = build(30, runs=runs, loaders={"loader-1": "train", "loader-2": "train"})
    assert said(snapshot).startswith("No switch took place: torchvision delivered 320 images/s")


def test_nothing_was_measured() -> None:
    assert said(build(5)) == "No loader has delivered a batch since the monitor was started."
    found = Monitor().comparison()
    assert isinstance(found, SwitchComparison)
    assert str(found) == "Nothing was measured: %monitor in a cell before the training starts the monitor."


def test_the_training_is_said_and_not_the_short_loop_that_switched_last() -> None:
    """As at the quickstart's end: the main loader's swap, then a short loop over a data set of one's own."""
    runs = [
        Run(0, 40, step=0.3, wait=0.21),
        Run(40, 80, step=0.2, wait=0.06),
        Run(81, 84, step=0.1, loader="loader-2"),
        Run(84, 86, step=0.1, loader="loader-2"),
    ]
    events = [switch(40, TORCH, DALI, asked=39.999), switch(84, TORCH, DALI, asked=83.999, loader="loader-2")]
    snapshot = build(87, runs=runs, events=events, loaders={"loader-1": "train", "loader-2": "own"})
    text = said(snapshot)
    first = "train: dali-cpu took over from torchvision at batch 100 of epoch 1: 107 → 160 images/s (1.50 × faster)"
    assert text.startswith(first)
    assert " own: dali-cpu took over from torchvision" in text
    counts = "(928 images in 2.9 s before, 512 images in 1.6 s after)"
    assert text.endswith(f"but too little was measured to compare {counts}: each side takes 10 steps and 2 s.")
    shown = not_none(switch_strip(snapshot, snapshot.events, snapshot.loaders))
    assert shown["loader"] == "loader-1"
    assert shown["text"].startswith("train: 107 → 160 images/s while it loops, 1.50 × faster (")
    found = analyse(snapshot)
    assert [found.headline] == [one for one in found.changes if one.after == "train/2"]
    # Asked for, the short loop is said.
    assert said(snapshot, "own").startswith("own: dali-cpu took over")


def test_a_validation_that_was_switched_last_does_not_stand_for_the_training() -> None:
    runs, events = [], []
    for epoch, (train, val) in enumerate(((0.3, 0.1), (0.2, 0.1), (0.2, 0.05), (0.2, 0.05))):
        at = 40.0 * epoch
        runs += [Run(at, at + 30, step=train, wait=train / 2), Run(at + 30, at + 40, step=val, loader="loader-2")]
    events = [switch(40.1, TORCH, DALI, asked=40.0), switch(110.1, TORCH, DALI, asked=110.0, loader="loader-2")]
    snapshot = build(160, runs=runs, events=events)
    assert said(snapshot).startswith("train: dali-cpu took over from torchvision at batch 100 of epoch 1: 107 → 160")
