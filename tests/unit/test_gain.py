"""Gains against a machine of cores that is simulated, not reckoned; and the table of what transforms cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from kernel_monitor.diagnose.gain import Resources, gains
from kernel_monitor.diagnose.model import Stretch
from kernel_monitor.diagnose.timings import of_steps
from kernel_monitor.loaders.transforms.costs import ratio, ratios, tables
from kernel_monitor.loaders.transforms.translate import translate
from kernel_monitor.store.steps import STEP

BACKENDS = [{"name": name, "available": True} for name in ("torchvision", "dali-cpu", "dali-gpu", "synthetic")]


def stretch(backend: str = "torchvision", workers: int = 2, **others: Any) -> Stretch:
    given: dict[str, Any] = {
        "key": "train/1", "loader": "loader-1", "name": "train", "backend": backend, "began_by": "start", "label": None,
        "knobs": {"workers": workers, "prefetch": 2, "threads": workers}, "start": 0.0, "end": 60.0, "seconds": 60.0,
        "steps": 600, "left_out": 0, "batches": 600, "samples": 19200, "rate": 320.0, "wait": 60.0, "step": 100.0,
        "phases": {}, "on_device": False, "statistics": (),
    }  # fmt: skip
    return Stretch(**{**given, **others})


def steps(step: float, wait: float, count: int = 300) -> Any:
    rows = np.zeros(count, dtype=STEP)
    rows["step"], rows["wait"] = step, wait
    rows["end"] = np.arange(1, count + 1) * step
    for name in ("copy", "forward", "backward", "optimizer"):
        rows[name] = np.nan
    return of_steps(rows)


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
        state = {"backends": BACKENDS, "expected": {"dali-cpu": {"AMD": factor}}}
        found = gains(stretch(workers=workers), steps(step, wait), given, state)
        gain = next(one for one in found.gains if one.action == "dali-cpu")
        checked += 1
        outside += not gain.low <= 1 - after / step <= gain.high
        widths.append(gain.high - gain.low)
        ceiling = next(one for one in found.gains if one.action == "loader")
        assert ceiling.low == pytest.approx(wait / step, abs=0.02)
    assert checked >= 40, f"seed {seed}: {checked}"
    assert outside <= 0.1 * checked, f"seed {seed}: {outside} of {checked}"
    assert max(widths) <= 0.3, f"seed {seed}: {max(widths)}"


def test_with_a_gpu_and_free_cores_the_step_is_at_least_the_training() -> None:
    given = Resources(64, 0.01, 0.4, 0.1)  # 8 workers at 50 ms a batch each, of 64 cores
    loader = stretch(workers=8, on_device=True, knobs={"workers": 8, "prefetch": 2, "threads": 8})
    found = gains(loader, steps(0.055, 0.025), given, {"backends": BACKENDS, "expected": {"dali-cpu": {"AMD": 0.2}}})
    gain = next(one for one in found.gains if one.action == "dali-cpu")
    # A fifth of the work: 10 ms a batch, and 30 ms of the step are no wait.
    assert gain.low <= 1 - 0.03 / 0.055 <= gain.high
    assert gain.high - gain.low == pytest.approx(0.08, abs=0.01)


def test_the_table_is_that_of_the_processors_maker_and_of_a_strange_one_all_count() -> None:
    state = {"backends": BACKENDS, "expected": {"dali-cpu": {"AMD": 0.4, "Intel": 0.6}}}

    def interval(processor: str) -> tuple[float, float]:
        found = gains(stretch(), steps(0.1, 0.06), Resources(2, 0.03, 0.16, 0.99, processor), state)
        (gain,) = (one for one in found.gains if one.action == "dali-cpu")
        return gain.low, gain.high

    # Two cores share (30 + ratio x 160) ms of processor time, where (30 + 160) took 100 ms.
    amd, intel = interval("AMD EPYC 9554 64-Core Processor"), interval("Intel(R) Xeon(R) Processor @ 2.50GHz")
    assert amd[0] < 1 - 94 / 200 < amd[1]
    assert intel[0] < 1 - 126 / 200 < intel[1]
    assert amd[0] > intel[0]
    assert interval("Apple M4") == interval("") == (intel[0], amd[1])


def test_a_session_of_an_older_version_has_no_table() -> None:
    state = {"backends": BACKENDS, "expected": {"dali-cpu": 0.5}}
    found = gains(stretch(), steps(0.1, 0.06), Resources(2, 0.03, 0.16, 0.99), state)
    assert any("dali-cpu" in one and "no table" in one for one in found.unknown)


@pytest.mark.parametrize(
    ("changes", "resources", "state", "words"),
    [
        ({}, {}, {}, "no table of what these transforms cost"),
        ({}, {"workers_s": math.nan}, {"expected": {"dali-cpu": {"AMD": 0.5}}}, "workers was not measured"),
        ({}, {"workers_s": 0.02, "busy": 0.2}, {"expected": {"dali-cpu": {"AMD": 0.5}}}, "wait for files"),
        ({"backend": "dali-gpu"}, {}, {"expected": {"dali-cpu": {"AMD": 0.5}}}, "not told apart"),
    ],
)
def test_what_cannot_be_reckoned_is_said(
    changes: dict[str, Any], resources: dict[str, Any], state: dict[str, Any], words: str
) -> None:
    given = replace(Resources(2, 0.03, 0.16, 0.99), **resources)
    found = gains(stretch(**changes), steps(0.1, 0.06), given, {"backends": BACKENDS, **state})
    assert [one.action for one in found.gains] == ["loader"]
    assert any("dali-cpu" in one and words in one for one in found.unknown)


def test_dali_gpu_is_left_to_diagnose() -> None:
    given = Resources(2, 0.03, 0.16, 0.99)
    found = gains(stretch(), steps(0.1, 0.06), given, {"backends": BACKENDS, "expected": {"dali-cpu": {"AMD": 0.5}}})
    assert "dali-gpu" not in [one.action for one in found.gains]
    assert any("dali-gpu" in one and "Diagnose" in one for one in found.unknown)


# -- what transforms cost ---------------------------------------------------------------------------------------------

COSTS = {
    "decode": {"torchvision": [1.0, 0.0], "dali-cpu": [0.75, 0.0]},
    "decode region": {"dali-cpu": [0.25, 0.0]},
    "uint8": {"torchvision": [0.0, 0.0], "dali-cpu": [0.0, 0.0]},
    "float32": {"torchvision": [0.0, 2.0], "dali-cpu": [0.0, 1.0]},
    "RandomRotation/pil": {"torchvision": [0.25, 0.0], "dali-cpu": [0.75, 0.0]},
    "RandomRotation/tensor": {"torchvision": [3.0, 0.0], "dali-cpu": [0.75, 0.0]},
}
MEGAPIXEL = np.array([[1000, 1000]])


def expected(*chain: Any, costs: Any = COSTS, fused: bool = True) -> float | None:
    transform = v2.Compose(list(chain))
    return ratio(transform, translate(transform), MEGAPIXEL, fused=fused, costs=costs)


def test_a_ratio_is_that_of_the_sums_over_the_chain() -> None:
    ends = [v2.CenterCrop(500), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    turn = v2.RandomRotation(10)
    assert expected(*ends) == pytest.approx((0.75 + 0.25 * 1) / (1 + 0.25 * 2))
    assert expected(turn, turn, *ends) == pytest.approx((0.75 + 1.5 + 0.25) / (1 + 0.5 + 0.5))
    assert expected(v2.PILToTensor(), turn, *ends) == pytest.approx((0.75 + 0.75 + 0.25) / (1 + 3 + 0.5))


def test_a_crop_at_the_start_is_decoded_alone() -> None:
    chain = [v2.RandomCrop(500), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    assert expected(*chain) == pytest.approx((0.25 + 0.25 * 0.5 + 0.25) / 1.5)
    assert expected(*chain, fused=False) == pytest.approx((0.75 + 0.25) / 1.5)


def test_what_is_not_in_the_table_has_no_ratio() -> None:
    ends = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    assert expected(v2.ColorJitter(0.2), *ends) is None
    assert expected(v2.RandomApply([v2.RandomRotation(5)]), *ends) is None
    assert expected(v2.RandomPosterize(3), *ends) is None  # DALI does not do it: a rest is left to torchvision


@pytest.mark.parametrize("maker", tables())
def test_the_tables_of_the_package_are_whole_and_plausible(maker: str) -> None:
    found = tables()[maker]
    for name, engines in found.items():
        for engine, pair in engines.items():
            assert len(pair) == 2, (name, engine)
            assert all(math.isfinite(value) and 0 <= value < 20 for value in pair), (name, engine, pair)
    assert found["decode"]["torchvision"][0] == pytest.approx(1.0, rel=0.01)
    assert found["decode region"]["dali-cpu"][0] < found["decode"]["dali-cpu"][0]
    usual = [v2.RandomResizedCrop(224), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    value = expected(*usual, costs=found)
    assert value is not None
    chain = v2.Compose(usual)
    assert ratios(chain, translate(chain), MEGAPIXEL, fused=True)[maker] == value
    assert 0.3 < value < 1.0
