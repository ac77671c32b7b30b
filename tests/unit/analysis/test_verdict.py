"""Single verdicts: what is counted as waiting, what it abstains from, and its words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.advice import decide, next_step
from kernel_monitor.analysis.results import Segment, Statistic, prose
from kernel_monitor.analysis.step_times import quantiles, timings_of_steps
from kernel_monitor.analysis.verdict import verdict
from kernel_monitor.steps.measured_step import ON_DEVICE
from tests.unit import sessions
from tests.unit.sessions import step_rows as rows

ALL = {"copy": 0.005, "forward": 0.025, "backward": 0.05, "optimizer": 0.01}


def segment(gpu: float | None = None, **fields: Any) -> Segment:
    statistics = () if gpu is None else (Statistic("gpu", "GPU", "%", quantiles(np.full(50, gpu))),)
    known = {"statistics": statistics, "steps": 300, "knobs": {"workers": 4, "prefetch": 2}}
    return sessions.segment(**{**known, **fields})


def test_a_wait_behind_queued_work_is_not_starvation_and_with_an_idle_gpu_it_is() -> None:
    """The host waits 40 ms of each 100, but the GPU is busy 95 of them: without the wait, 5 would be saved."""
    device = rows(flags=ON_DEVICE, wait=0.04, step=0.1, **{**ALL, "backward": 0.055})
    found = verdict(segment(gpu=96.0), timings_of_steps(device))
    assert found.kind == "compute-bound"
    assert found.shares["wait"] == pytest.approx(0.05, abs=1e-6)
    device = rows(flags=ON_DEVICE, wait=0.04, step=0.1, copy=0.002, forward=0.02, backward=0.03, optimizer=0.004)
    found = verdict(segment(gpu=56.0), timings_of_steps(device))
    assert found.kind == "input-bound"
    assert found.shares["wait"] == pytest.approx(0.4, abs=1e-6)
    assert found.sentence == "40 % of each step is the GPU waiting for data (40 of 100 ms, 300 steps)."


def test_without_phases_a_busy_gpu_contradicts_the_wait() -> None:
    found = verdict(segment(gpu=98.0), timings_of_steps(rows(wait=0.04, step=0.1)))
    assert found.kind == "undetermined"
    assert "queued steps" in found.sentence
    assert any("monitor.watch(model, optimizer)" in one for one in found.missing)
    assert verdict(segment(gpu=97.0), timings_of_steps(rows(wait=0.001, step=0.1))).kind == "compute-bound"


def test_without_phases_and_gpu_it_says_only_what_the_wait_says() -> None:
    assert verdict(segment(), timings_of_steps(rows(wait=0.04, step=0.1))).kind == "input-bound"
    found = verdict(segment(), timings_of_steps(rows(wait=0.001, step=0.1)))
    assert found.kind == "undetermined"
    assert "loading is fast enough" in found.sentence
    assert "monitor.watch" in prose(next_step(decide(segment(), found, {}, 4), found.missing))


@pytest.mark.parametrize(
    ("parts", "kind"),
    [({"copy": 0.04, "backward": 0.015}, "copy-bound"), ({"backward": 0.02}, "residual-heavy"), ({}, "compute-bound")],
)
def test_phases_tell_the_rest(parts: dict[str, float], kind: str) -> None:
    assert verdict(segment(), timings_of_steps(rows(wait=0.004, step=0.1, **{**ALL, **parts}))).kind == kind


def test_what_was_not_measured_is_not_called_residual() -> None:
    blind = {name: value for name, value in ALL.items() if name != "optimizer"} | {"backward": 0.03}
    found = verdict(segment(), timings_of_steps(rows(wait=0.004, step=0.1, **blind)))
    assert found.kind == "undetermined"
    assert "optimizer" in found.sentence


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_a_handful_of_steps_is_too_few(steps: int) -> None:
    found = verdict(segment(), timings_of_steps(rows(steps, wait=0.08, step=0.1)))
    assert found.kind == "undetermined"
    assert "too few" in found.sentence


def test_batches_loaded_in_advance_may_hide_a_slow_loader() -> None:
    few, many = (timings_of_steps(rows(count, wait=0.0, step=0.1, **ALL)) for count in (60, 120))
    assert verdict(segment(), few).kind == "undetermined"
    assert verdict(segment(), many).kind == "compute-bound"


def test_bursts_of_workers_are_one_thing() -> None:
    """Eight workers deliver at once: one wait of 400 ms, then seven of none."""
    made = rows(320, wait=0.0, step=0.05, forward=0.045)
    made["wait"][::8] = 0.4
    made["step"] = made["wait"] + 0.05
    found = verdict(segment(knobs={"workers": 8, "prefetch": 2}), timings_of_steps(made))
    assert found.kind == "input-bound"
    assert found.shares["wait"] == pytest.approx(0.5, abs=0.01)


def test_two_kinds_in_one_segment_are_named_as_such() -> None:
    made = np.concatenate([rows(200, wait=0.0, step=0.1, **ALL), rows(100, wait=0.15, step=0.25, **ALL)])
    found = verdict(segment(), timings_of_steps(made))
    assert found.kind == "undetermined"
    words = "33 % of each step is waiting for data (50 of 150 ms, 300 steps), but not evenly: "
    assert found.sentence == f"{words}0 % in a part of the time, 59 % in another."


def test_thresholds_are_adjustable() -> None:
    steps = timings_of_steps(rows(wait=0.04, step=0.1))
    assert verdict(segment(), steps, thresholds={"wait": 0.5}).kind != "input-bound"
