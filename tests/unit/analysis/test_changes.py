"""Two segments side by side: figures, counts that forbid a comparison, and what was said before."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.changes import change, changes
from kernel_monitor.analysis.results import EpochCount, Gain, Segment, Verdict
from kernel_monitor.analysis.segments import segments
from tests.unit.sessions import Run, build, segment, switch


def after(**others: Any) -> Segment:
    given = {"backend": "dali-cpu", "began_by": "switch", "start": 62.0, "end": 120.0, "rate": 640.0, "step": 50.0}
    return segment("train/2", **{**given, **others})


def said(*gains: Gain) -> Verdict:
    return Verdict("input-bound", "train/1", "It waits.", gains=gains)


def test_a_change_says_how_much_faster_and_what_it_saved() -> None:
    made = change(segment(), after())
    assert (made.before, made.after, made.caveats) == ("train/1", "train/2", ())
    assert (made.faster, made.saved) == pytest.approx((2.0, 0.5))
    assert math.isnan(made.histogram_distance)
    # Without steps or time there are no figures.
    unknown = change(segment(step=math.nan, rate=math.nan), after())
    assert np.isnan([unknown.faster, unknown.saved, change(segment(step=0.0, rate=0.0), after()).saved]).all()


def test_histograms_are_half_the_sum_of_differences_apart() -> None:
    low, high, half = (1.0, *[0.0] * 49), (*[0.0] * 49, 1.0), (0.5, *[0.0] * 48, 0.5)
    found = [change(segment(gpu_histogram=low), after(gpu_histogram=one)) for one in (high, half, low)]
    assert [one.histogram_distance for one in found] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("before", "behind", "words"),
    [
        ({}, {"steps": 12}, "after: 12 steps"),
        ({"steps": 1}, {}, "before: 1 step"),
        ({}, {"synthetic": True}, "after: the batches were replayed"),
        ({}, {"samples": 9600}, "32 samples a batch before, 16 after"),
        ({"rate": math.nan}, {}, "before: the rate is not known"),
    ],
)
def test_what_forbids_a_comparison_is_said(before: dict[str, Any], behind: dict[str, Any], words: str) -> None:
    assert words in change(segment(**before), after(**behind)).caveats


@pytest.mark.parametrize(("share", "told"), [(0.0, False), (4.9, False), (5.0, True), (23.0, True)])
def test_what_other_virtual_machines_took_is_a_caveat(share: float, told: bool) -> None:
    runs = [Run(0, 30, step=0.1, wait=0.06), Run(30, 60, step=0.066, wait=0.026)]
    steal = {f"cpu/{core}/steal": lambda time: np.where(time > 31, share, 0.0) for core in range(2)}
    snapshot = build(60, cpus=2, series=steal, runs=runs, events=[switch(30.0, "torchvision", "dali-cpu")])
    (made,) = changes(segments(snapshot))
    words = f"after: the hypervisor gave {share:.0f} % of the processor to others"
    assert made.caveats == ((words,) if told else ())
    metrics = [[one.metric for one in part.statistics] for part in segments(snapshot)]
    assert ["steal" in one for one in metrics] == [False, share > 0]


def test_an_epoch_that_delivered_too_little_is_a_caveat() -> None:
    empty = EpochCount("loader-1", "train", 1, 0, 0, 9469, 0.1, finished=True, problem="delivered 0 of 9,469 samples")
    assert change(segment(), after(), epochs=[empty]).caveats == ("epoch 2 delivered less than planned",)


def test_neighbours_of_one_loader_are_compared_and_others_are_not() -> None:
    other = segment("test/1", loader="loader-2", name="test", start=30.0)
    found = changes([segment(), other, after()])
    assert [(one.before, one.after) for one in found] == [("train/1", "train/2")]
    events = [{"kind": "switch", "loader": "loader-2", "time": 70.0}]
    assert changes([segment(), after()], events)[0].caveats == ("another loader was changed meanwhile",)


def test_the_prediction_of_the_engine_that_came_is_kept_beside_what_it_brought() -> None:
    verdict = said(Gain("loader", 0.6, 0.7), Gain("dali-cpu", 0.4, 0.6, basis="processor time"))
    (made,) = changes([segment(), after()], verdicts=[verdict])
    assert made.predicted == Gain("dali-cpu", 0.4, 0.6, measured=0.5, basis="processor time")
    (ceiling,) = changes([segment(), after(synthetic=True, backend="synthetic")], verdicts=[verdict])
    assert ceiling.predicted is not None
    assert ceiling.predicted.action == "loader"
    (marked,) = changes([segment(), after(began_by="mark", backend="torchvision")], verdicts=[verdict])
    assert marked.predicted is None


def test_what_was_noted_when_the_switch_was_asked_for_goes_before_what_is_reckoned_now() -> None:
    noted = {
        "kind": "prediction", "loader": "loader-1", "source": "torchvision", "target": "dali-cpu", "time": 60.0,
        "gains": [{"action": "dali-cpu", "low": 0.3, "high": 0.55, "measured": None, "basis": "then"}],
    }  # fmt: skip
    (made,) = changes([segment(), after()], [noted], verdicts=[said(Gain("dali-cpu", 0.0, 0.1))])
    assert made.predicted == Gain("dali-cpu", 0.3, 0.55, measured=0.5, basis="then")
