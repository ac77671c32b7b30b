"""Gains against a machine of cores that is simulated, not reckoned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.gains import ExpectedGains, Resources, gains
from kernel_monitor.analysis.results import Gain, faster
from kernel_monitor.analysis.step_times import timings_of_steps
from tests.unit.sessions import calibrated, segment, step_rows

BACKENDS = [{"name": name, "available": True} for name in ("torchvision", "dali-cpu", "dali-gpu", "synthetic")]


def steps(step: float, wait: float) -> Any:
    return timings_of_steps(step_rows(step=step, wait=wait))


def engine_gain(found: ExpectedGains, action: str = "dali-cpu") -> Gain:
    return next(one for one in found.gains if one.action == action)


def shared(training: float, loading: float, workers: int, cores: int, steps: int = 200) -> tuple[float, float]:
    """Mean step and wait, s, of a loop whose workers share the cores with it: each runnable process has its part.

    Args:
        training, loading: CPU s of a step's training and of a batch's loading.
        workers: processes or threads that load, each a batch at a time, two batches ahead of the loop.
        cores: what all share.
    """
    queue, left, jobs = 0, 0.0, [0.0] * workers
    waited = passed = counted_from = 0.0
    done = -steps // 4  # the first ones are not counted
    while done < steps:
        for place, job in enumerate(jobs):
            if job <= 0 and queue + sum(one > 0 for one in jobs) < 2 * workers:
                jobs[place] = loading
        if left <= 0 and queue:
            queue, left = queue - 1, training
        running = [one for one in (*jobs, left) if one > 0]
        speed = min(1.0, cores / len(running))
        work = min(running)  # until the next one is through
        passed += work / speed
        if left <= 0:
            waited += work / speed
        elif (left := left - work) < 1e-12:
            left, done = 0.0, done + 1
            if done == 0:
                counted_from, waited = passed, 0.0
        for place, job in enumerate(jobs):
            if job > 0 and (job - work) < 1e-12:
                jobs[place], queue = 0.0, queue + 1
            elif job > 0:
                jobs[place] = job - work
    return (passed - counted_from) / steps, waited / steps


def test_the_gain_on_shared_cores_holds_a_simulated_machine() -> None:
    seed = 20261121
    random = np.random.default_rng(seed)
    checked = outside = 0
    widths = []
    for _ in range(60):
        cores = int(random.integers(2, 5))
        workers = int(random.integers(1, cores + 1))
        training = float(random.uniform(0.005, 0.04))
        loading = training * float(random.uniform(2.0, 8.0)) * workers
        factor = float(random.uniform(0.3, 1.3))
        step, wait = shared(training, loading, workers, cores, steps=200)
        if wait < 0.1 * step:
            continue
        after, _ = shared(training, loading * factor, workers, cores, steps=200)
        busy = min(1.0, (training + loading) / (cores * step))
        given = Resources(cores, training, loading, busy)
        state = {"backends": BACKENDS, **calibrated(loading * factor)}
        loader = segment(knobs={"workers": workers, "prefetch": 2, "threads": workers})
        found = gains(loader, steps(step, wait), given, state)
        gain = engine_gain(found)
        checked += 1
        outside += not gain.low <= 1 - after / step <= gain.high
        widths.append(gain.high - gain.low)
        assert engine_gain(found, "loader").low == pytest.approx(wait / step, abs=0.02)
    assert checked >= 40, f"seed {seed}: {checked}"
    assert outside <= 0.1 * checked, f"seed {seed}: {outside} of {checked}"
    assert max(widths) <= 0.4, f"seed {seed}: {max(widths)}"


def test_with_a_gpu_and_free_cores_the_step_is_at_least_the_training() -> None:
    given = Resources(64, 0.01, 0.4, 0.1)  # 8 workers at 50 ms a batch each, of 64 cores
    loader = segment(on_device=True, knobs={"workers": 8, "prefetch": 2, "threads": 8})
    found = gains(loader, steps(0.055, 0.025), given, {"backends": BACKENDS, **calibrated(0.2 * 0.4)})
    gain = engine_gain(found)
    # A fifth of the work: 10 ms a batch, and 30 ms of the step are no wait.
    assert gain.low <= 1 - 0.03 / 0.055 <= gain.high
    assert gain.high - gain.low == pytest.approx(0.08, abs=0.01)


def test_the_more_the_files_differ_the_wider_the_interval() -> None:
    def interval(error: float) -> tuple[float, float]:
        state = {"backends": BACKENDS, **calibrated(0.08, error)}
        found = gains(segment(), steps(0.1, 0.06), Resources(2, 0.03, 0.16, 0.99), state)
        gain = engine_gain(found)
        assert "measured on 32 of your files: 80 ms of processor time a step" in gain.basis
        return gain.low, gain.high

    # Two cores share (30 + 80) ms of processor time, where (30 + 160) took 100 ms.
    narrow, wide = interval(0.0), interval(0.02)
    assert wide[0] < narrow[0] < 1 - 110 / 200 < narrow[1] < wide[1]


def calibration(**fields: Any) -> dict[str, Any]:
    found = {"state": "failed", "files": 32, "seconds": None, "error": None, "reason": None}
    return {"calibration": {"dali-cpu": {**found, **fields}}}


@pytest.mark.parametrize(
    ("changes", "resources", "state", "words"),
    [
        ({}, {}, {}, "not tried on your files yet"),
        ({}, {}, {"expected": {"dali-cpu": {"AMD": 0.55}}}, "not tried on your files yet"),  # an old recording
        ({}, {}, calibration(state="running"), "being tried on 32 of your files"),
        ({}, {}, calibration(reason="DALI failed: no memory"), "DALI failed: no memory"),
        ({}, {}, calibration(seconds=math.nan), "not tried on your files yet"),
        ({}, {"workers_s": math.nan}, calibrated(0.08), "workers was not measured"),
        ({}, {"workers_s": 0.02, "busy": 0.2}, calibrated(0.08), "wait for files"),
        ({"backend": "dali-gpu"}, {}, calibrated(0.08), "cannot be separated"),
    ],
)
def test_without_a_prediction_there_is_a_reason(
    changes: dict[str, Any], resources: dict[str, Any], state: dict[str, Any], words: str
) -> None:
    given = replace(Resources(2, 0.03, 0.16, 0.99), **resources)
    found = gains(segment(**changes), steps(0.1, 0.06), given, {"backends": BACKENDS, **state})
    assert [one.action for one in found.gains] == ["loader"]
    assert any("dali-cpu" in one and words in one for one in found.unknown)
    if not changes:
        assert any("dali-gpu" in one and "Diagnose" in one for one in found.unknown), "its own load is not predicted"


def test_a_gain_is_a_factor_in_words_as_on_the_page() -> None:
    """vitest reads the same table (widgets/tests/cost.test.ts)."""
    table = json.loads((Path(__file__).parents[2] / "wire" / "faster.json").read_text("utf-8"))
    assert [faster(low, high) for low, high, _ in table] == [words for _, _, words in table]


def test_what_was_tried_is_not_called_expected() -> None:
    tried = Gain("dali-cpu", 0.2, 0.4, measured=0.324, by="switch")
    assert tried.words == "dali-cpu: measured 1.48 × faster"
    unsure = replace(tried, low=-20.0, high=0.7)
    assert unsure.words == "dali-cpu: measured 1.48 × faster, but the steps vary too much to be sure"
    assert replace(tried, by="").words == "dali-cpu: expected 1.25 to 1.67 × faster; measured 1.48 × faster"
