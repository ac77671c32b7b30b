"""Single verdicts: what is counted as waiting, what it abstains from, and its words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.advice import decide, next_step
from kernel_monitor.analysis.results import Segment, Statistic, prose
from kernel_monitor.analysis.step_times import quantiles, shares, timings_of_steps
from kernel_monitor.analysis.verdict import verdict
from kernel_monitor.steps.measured_step import ON_DEVICE, PROFILED, WARM_UP
from kernel_monitor.store.snapshot import STEP


def rows(count: int = 300, /, flags: float = 0, **parts: float) -> Any:
    """Steps of fixed parts, s; phases that are not named are NaN."""
    made = np.zeros(count, dtype=STEP)
    for name in ("copy", "forward", "backward", "optimizer"):
        made[name] = parts.get(name, np.nan)
    made["wait"], made["step"], made["flags"] = parts["wait"], parts["step"], flags
    made["end"] = np.arange(1, count + 1) * parts["step"]
    return made


def segment(gpu: float | None = None, **others: Any) -> Segment:
    statistics = () if gpu is None else (Statistic("gpu", "GPU", "%", quantiles(np.full(50, gpu))),)
    given: dict[str, Any] = {
        "key": "train/1", "loader": "loader-1", "name": "train", "backend": "torchvision", "began_by": "start",
        "label": None, "knobs": {"workers": 4, "prefetch": 2}, "start": 0.0, "end": 60.0, "seconds": 60.0, "steps": 300,
        "left_out": 0, "batches": 300, "samples": 9600, "rate": 320.0, "wait": 0.0, "step": 100.0, "phases": {},
        "on_device": False, "statistics": statistics,
    }  # fmt: skip
    return Segment(**{**given, **others})


ALL = {"copy": 0.005, "forward": 0.025, "backward": 0.05, "optimizer": 0.01}


def test_a_wait_behind_queued_work_is_not_starvation() -> None:
    """The host waits 40 ms of each 100, but the GPU is busy 95 of them: without the wait, 5 would be saved."""
    device = rows(flags=ON_DEVICE, wait=0.04, step=0.1, **{**ALL, "backward": 0.055})
    found = verdict(segment(gpu=96.0), timings_of_steps(device))
    assert found.kind == "compute-bound"
    assert found.shares["wait"] == pytest.approx(0.05, abs=1e-6)


def test_the_same_wait_with_an_idle_gpu_is() -> None:
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


def test_without_phases_and_gpu_it_says_only_what_the_wait_says() -> None:
    assert verdict(segment(), timings_of_steps(rows(wait=0.04, step=0.1))).kind == "input-bound"
    found = verdict(segment(), timings_of_steps(rows(wait=0.001, step=0.1)))
    assert found.kind == "undetermined"
    assert "loading is fast enough" in found.sentence
    assert "monitor.watch" in prose(next_step(decide(segment(), found, {}, 4), found.missing))


def test_without_phases_a_busy_gpu_and_no_wait_is_compute_bound() -> None:
    assert verdict(segment(gpu=97.0), timings_of_steps(rows(wait=0.001, step=0.1))).kind == "compute-bound"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"copy": 0.04}, "copy-bound"),
        ({"backward": 0.02}, "residual-heavy"),
        ({}, "compute-bound"),
    ],
)
def test_phases_tell_the_rest(parts: dict[str, float], kind: str) -> None:
    given = {**ALL, **parts}
    if "copy" in parts:
        given["backward"] = 0.015
    assert verdict(segment(), timings_of_steps(rows(wait=0.004, step=0.1, **given))).kind == kind


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


def test_steps_of_warm_up_profiling_and_pauses_do_not_count() -> None:
    made = rows(300, wait=0.002, step=0.1, **ALL)
    made["wait"][:3], made["step"][:3], made["flags"][:3] = 9.0, 9.1, WARM_UP
    made["wait"][100:110], made["step"][100:110], made["flags"][100:110] = 0.5, 0.8, PROFILED
    made["step"][200] = 40.0  # an evaluation
    used = timings_of_steps(made)
    assert len(used) == 286
    assert shares(used).wait.value == pytest.approx(0.02)


def test_a_single_long_wait_is_not_left_out() -> None:
    made = rows(100, wait=0.0, step=0.1, **ALL)
    made["wait"][50], made["step"][50] = 30.0, 30.1
    assert len(timings_of_steps(made)) == 100


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
