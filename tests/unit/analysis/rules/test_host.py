"""The rule on a loader that takes the training's own cores: what fires it, and what it abstains from."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.results import Finding
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.ipython.answers import analysis_text
from kernel_monitor.report.page import render
from kernel_monitor.steps.measured_step import NO_GRADIENTS, ON_DEVICE
from kernel_monitor.store import Snapshot
from tests.unit.checks import contains
from tests.unit.rules_asked import findings
from tests.unit.sessions import Run, build, switch

RULE = "host-contention"
KNOBS = {"workers": 2, "prefetch": 2, "threads": 4}


def noisy(mean: float, seed: int, spread: float = 0.05) -> list[float]:
    """Lengths of 2,000 steps, s."""
    drawn: list[float] = (mean * np.random.default_rng(seed).normal(1, spread, 2000).clip(0.5, 2)).tolist()
    return drawn


def swapped(
    own: float = 0.112, wait: float = 0.01, *, spread: float = 0.05, seconds: float = 40.0, **more: Any
) -> Snapshot:
    """Steps of 0.1 s that wait 0.06 s besides; from second 40 on dali-cpu, with steps of `own` that wait `wait`."""
    before, after = noisy(0.1, 1, spread), noisy(own, 2, spread)
    fields: dict[str, Any] = {
        "before": {},
        "after": {},
        "events": [switch(40.2, "torchvision", "dali-cpu", asked=40.0)],
    }
    fields |= more
    runs = [
        Run(0, 40, step=lambda n: before[n] + 0.06, wait=0.06, **fields.pop("before")),
        Run(40.2, 40.2 + seconds, step=lambda n: after[n] + wait, wait=wait, **fields.pop("after")),
    ]
    state = {"backend": "dali-cpu", "knobs": KNOBS}
    cpu = {
        "busy": lambda time: np.where(time > 40, 95.0, 70.0),
        "kernel": lambda time: np.where(time > 40, 330.0, 130.0),
    }
    given: dict[str, Any] = {**cpu, "workers": None, "states": [state], **fields}
    return build(42 + seconds, runs=runs, **given)


def after(snapshot: Snapshot, **thresholds: float) -> Finding:
    return findings(RULE, snapshot, others=(), **thresholds)[-1]


def test_a_swap_that_slows_the_training_down_is_said_with_its_figures_and_what_to_do() -> None:
    found = after(swapped())
    assert (found.state, found.severity, found.segment) == ("fired", "warning", "train/2")
    text = found.evidence[0].text
    assert text.startswith("The swap from torchvision to dali-cpu made the training's own steps 1.12 × slower (")
    assert (
        "× slower by the spread of the steps: 100.0 → 111." in text
        or "× slower by the spread of the steps: 99." in text
    )
    contains(text, "as a whole the loop runs 1.31 × faster (", ", and could be faster still.")
    assert found.evidence[0].value == pytest.approx(12, abs=1)
    assert found.evidence[1].text == "CPU p50 95 %, p95 95 % since the change; p50 70 %, p95 70 % before it"
    assert found.advice == "Fewer threads: loader.set(threads=2) instead of 4."  # 4 cores, of which training takes 1.3
    assert [(point.about, point.target, point.stance) for point in found.advised[0].points] == [
        ("threads", "fewer", "for")
    ]


def test_it_stands_with_the_verdict_in_text_report_and_json() -> None:
    snapshot = swapped()
    analysis = analyse(snapshot)
    (warning,) = analysis.verdict.warnings
    assert warning.startswith("The swap from torchvision to dali-cpu made the training's own steps 1.12 ×")
    assert warning.endswith("before it. Fewer threads: loader.set(threads=2) instead of 4.")
    assert analysis.verdicts[0].warnings == ()
    text = " ".join(analysis_text(analysis).split())
    assert f"careful {warning}" in text
    assert "Loading takes the training's own cores" not in text, "it is said once"
    assert analysis.to_json()["verdict"]["warnings"] == [warning]
    page = html.unescape(render(snapshot, analysis))
    assert f'<p class="warned"><b>Careful: </b>{warning}</p>' in page


def test_a_whole_step_that_became_longer_is_said() -> None:
    text = after(swapped(own=0.16, wait=0.04)).evidence[0].text
    assert "made the training's own steps 1.61 × slower (1.60 to 1.62 × slower by" in text
    assert "; as a whole the loop runs 1.25 × slower (" in text
    assert "; as a whole the loop runs as fast as before (" in after(swapped(own=0.15)).evidence[0].text


IDLE: dict[str, Any] = {"busy": 30.0, "kernel": 60.0}
OWN = {"forward": 0.03, "backward": 0.05, "optimizer": 0.01}
GPU_TIMES = {"flags": ON_DEVICE, "phases": {"copy": 0.0, **OWN}}
COPIES = {"before": {"phases": {**OWN, "copy": 0.005}}, "after": {"phases": {**OWN, "copy": 0.016}}}


@pytest.mark.parametrize(
    ("more", "thresholds", "state"),
    [
        # All of the interval must be longer by a twentieth.
        ({"own": 0.09}, {}, "quiet"),
        ({"own": 0.1}, {}, "quiet"),
        ({"own": 0.104}, {}, "quiet"),
        ({"own": 0.108}, {}, "fired"),
        # Cores with room for both are not the reason.
        (IDLE, {}, "quiet"),
        (IDLE, {"cpu": 20}, "fired"),
        # The GPU's own times are compared where it works; one that idles takes no part.
        ({"gpus": 1, "before": GPU_TIMES, "after": GPU_TIMES}, {}, "fired"),
        ({"gpus": 1, "before": GPU_TIMES}, {}, "abstained"),
        ({"gpus": 1, "gpu": 2.0}, {}, "fired"),
        # Copies to the device are not the training's own.
        ({"own": 0.111, **COPIES}, {}, "quiet"),
    ],
)
def test_what_counts_as_slower(more: dict[str, Any], thresholds: dict[str, float], state: str) -> None:
    assert after(swapped(**more), **thresholds).state == state


def test_a_difference_within_the_spread_is_not_settled() -> None:
    found = after(swapped(own=0.102, spread=0.4))
    assert found.state == "abstained"
    assert "within the spread of 2" in found.missing[0]
    assert found.missing[0].startswith("more steps: the training's own steps became ")


def test_a_turned_knob_is_judged_as_a_swap_and_its_old_value_advised() -> None:
    knobs = [{"kind": "knobs", "time": time, "loader": "loader-1", **KNOBS, "threads": threads, "message": None}
             for time, threads in ((0.01, 1), (40.1, 4))]  # fmt: skip
    found = after(swapped(events=knobs))
    assert found.state == "fired"
    assert found.evidence[0].text.startswith("Turning threads from 1 to 4 made the training's own steps 1.12 ×")
    assert found.advice == "Fewer threads: loader.set(threads=1) instead of 4."


def test_a_loop_that_waits_all_the_same_is_told_to_compare() -> None:
    found = after(swapped(own=0.13, wait=0.1))
    assert found.state == "fired"
    assert found.advice.startswith(
        "Compare with fewer threads, loader.set(threads=2) instead of 4; the loop also waits"
    )
    assert found.advised[0].points[0].stance == "neutral"


def to(engine: str, *others: dict[str, Any]) -> dict[str, Any]:
    """Fields of a session whose swap is to that engine."""
    events = [switch(40.2, "torchvision", engine, asked=40.0), *others]
    return {"events": events, "states": [{"backend": engine, "knobs": KNOBS}]}


OTHER = {"kind": "knobs", "time": 50.0, "loader": "loader-2", **KNOBS, "message": None}
STOLEN = {f"cpu/{core}/steal": lambda time: np.where(time > 40, 12.0, 0.0) for core in range(4)}
EVALUATION = {"before": {"flags": NO_GRADIENTS}, "after": {"flags": NO_GRADIENTS}}
REPLAYED = {"events": [switch(40.2, "synthetic", "dali-cpu", asked=40.0)]}


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({"seconds": 2.0}, "steps on each side of the change: 1"),
        ({"after": {"images": 16}}, "batches of one size: 32 samples before the change, 16 since"),
        (EVALUATION, "steps of a training"),
        (REPLAYED, "real batches before the change"),
        (to("dali-gpu"), "the GPU's own load of dali-gpu"),
        (to("dali-cpu", OTHER), "one change alone"),
        ({"gpus": 1}, "the GPU's own times"),
        ({"busy": math.nan}, "samples of CPU: 0 of the 10"),
        ({"series": STOLEN}, "a processor to itself: the hypervisor gave 0 %"),
        ({"kernel": 130.0}, "a machine to itself: other programs took 1.0 cores more"),
    ],
    ids=["few", "size", "evaluation", "replayed", "dali-gpu", "another", "gpu", "cpu", "steal", "others"],
)
def test_what_else_may_explain_it_is_named_and_nothing_said(more: dict[str, Any], missing: str) -> None:
    found = after(swapped(**more))
    assert found.state == "abstained"
    assert found.missing[0].startswith(missing)


def test_a_training_that_changed_within_a_side_is_not_compared() -> None:
    lengths = [0.16] * 100 + [0.18] * 2000
    runs = [Run(0, 40, step=lambda n: lengths[n], wait=0.06), Run(40.2, 80, step=0.135, wait=0.01)]
    events = [switch(40.2, "torchvision", "dali-cpu", asked=40.0)]
    found = after(build(80, runs=runs, events=events, busy=95.0))
    assert found.state == "abstained"
    assert found.missing[0].startswith("one training on each side: before the change its own step went from 10")


def test_without_a_change_there_is_nothing_to_compare() -> None:
    (one,) = findings(RULE, build(60, runs=[Run(0, 60)]))
    assert one.missing == ("a switch or a turned knob at its beginning",)
    assert findings(RULE, swapped())[0].missing == one.missing
