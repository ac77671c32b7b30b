"""Rules on cores, GPUs and workers: at, just below and just above their thresholds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.results import plain
from kernel_monitor.store import Snapshot
from tests.unit.checks import contains
from tests.unit.rules_asked import ask, findings
from tests.unit.sessions import Floats, Run, Value, build, switch

LOOP = [Run(0, 60)]
NO_GPU = "GPU utilisation: NVML Shared Library Not Found"


def share(part: float, yes: float, no: float) -> Value:
    """`yes` in that part of the time, evenly spread, `no` in the rest."""

    def at(time: Floats) -> Floats:
        number = np.arange(len(time))
        return np.where(np.floor((number + 1) * part + 1e-9) > np.floor(number * part + 1e-9), yes, no)

    return at


def one_core(part: float, high: float, others: float, cpus: int = 4) -> dict[str, Value]:
    return {f"cpu/{core}/busy": share(part, high, others) if core == 0 else others for core in range(cpus)}


def turn(core: int) -> Value:
    """Each of four cores is the busy one in turn."""
    return lambda time: np.where(np.arange(len(time)) % 4 == core, 100.0, 20.0)


# Bottlenecks


def workers(many: int, cpus: int = 10, wait: float = 0.05, **more: Any) -> Snapshot:
    state = {"knobs": {"workers": many, "prefetch": 2, "threads": None}}
    return build(60, cpus=cpus, states=[state], runs=[Run(0, 60, step=0.1, wait=wait)], **more)


def idle(**values: Any) -> Snapshot:
    """A GPU, and a loop that hardly waits, on a machine of which nothing is full."""
    return build(60, gpus=1, runs=[Run(0, 60, wait=0.001)], **{"busy": 30.0, "gpu": 30.0, "gpu_memory": 30.0, **values})


FOUR = [{"knobs": {"workers": 4, "prefetch": 2, "threads": 2}}]
BELOW_70 = {69.5: "fired", 70: "quiet", 70.5: "quiet"}
THRESHOLDS: dict[str, tuple[str, Callable[[Any], Snapshot], dict[float, str]]] = {
    "a GPU idles below 10 %, and the CPU is full": (
        "cpu-bottleneck", lambda gpu: build(60, gpus=1, busy=99, gpu=gpu, runs=LOOP),
        {9.5: "fired", 10: "quiet", 10.5: "quiet"},
    ),
    "a GPU idles below 10 %, and the storage is waited for": (
        "io-bottleneck", lambda gpu: build(60, gpus=1, iowait=99, gpu=gpu, runs=LOOP),
        {9.5: "fired", 10: "quiet", 10.5: "quiet"},
    ),
    "a few samples with an idle GPU are no bottleneck": (
        "cpu-bottleneck", lambda low: build(60, gpus=1, busy=99, gpu=share(low, 0, 90), runs=LOOP),
        {0.08: "quiet", 0.12: "fired"},
    ),
    "much I/O wait is above half of the cores that load": (
        "io-bottleneck", lambda iowait: build(60, gpus=1, iowait=iowait, gpu=5, states=FOUR, runs=LOOP),
        {49.5: "quiet", 50: "quiet", 50.5: "fired"},
    ),
    "two workers of 16 cores: at most two cores can wait for what they read": (
        "io-bottleneck", lambda iowait: build(60, cpus=16, gpus=1, iowait=iowait / 8, gpu=5, runs=LOOP),
        {49.5: "quiet", 50: "quiet", 50.5: "fired"},
    ),
    "a larger batch where the CPU is not full": ("batch-size", lambda p95: idle(busy=p95), BELOW_70),
    "a larger batch where the GPU is not full": ("batch-size", lambda p95: idle(gpu=p95), BELOW_70),
    "a larger batch where the GPU's memory is not full": ("batch-size", lambda p95: idle(gpu_memory=p95), BELOW_70),
    "no larger batch where the loop waits": (
        "batch-size", lambda wait: build(60, gpus=1, gpu=20, runs=[Run(0, 60, step=0.1, wait=wait)]),
        {0.019: "fired", 0.021: "quiet"},
    ),
    "few workers matter only to a loop that waits": (
        "dataloader", lambda wait: workers(2, wait=wait), {0.009: "quiet", 0.011: "fired"},
    ),
    "too many workers are more than there are cores": (
        "too-many-workers", lambda many: workers(many, busy=99.0), {10: "quiet", 11: "fired"},
    ),
    "too many workers on cores that are full": (
        "too-many-workers", lambda cpu: workers(11, busy=cpu), {90.0: "quiet", 90.5: "fired"},
    ),
    "full cores are so most of the time": (
        "too-many-workers", lambda part: workers(16, busy=share(part, 99, 50)), {0.45: "quiet", 0.55: "fired"},
    ),
    # The mean of one core at 100 % and three others is 59.5 % or 60.1 %.
    "a saturated core is one among idle ones": (
        "saturated-core", lambda others: build(60, series=one_core(1.0, 100, others), runs=LOOP),
        {46.0: "fired", 46.8: "quiet"},
    ),
    "a saturated core is so most of the time": (
        "saturated-core", lambda part: build(60, series=one_core(part, 100, 20), runs=LOOP),
        {0.48: "quiet", 0.52: "fired"},
    ),
    "each of four cores is saturated in turn": (
        "saturated-core", lambda _: build(60, series={f"cpu/{core}/busy": turn(core) for core in range(4)}, runs=LOOP),
        {1: "fired"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, row in THRESHOLDS.items() for value in row[2]])
def test_at_below_and_above_a_threshold(name: str, value: float) -> None:
    rule, make, states = THRESHOLDS[name]
    assert ask(rule, make(value)).state == states[value]


@pytest.mark.parametrize(("cpu", "state"), [(89.5, "quiet"), (90, "quiet"), (90.5, "fired")])
def test_a_busy_cpu_is_one_above_ninety_per_cent(cpu: float, state: str) -> None:
    found = ask("cpu-bottleneck", build(60, gpus=1, busy=cpu, gpu=5, runs=LOOP))
    assert found.state == state
    if state == "fired":
        assert (found.times, found.evidence[0].share) == (found.samples, 1)
        assert found.evidence[0].start < found.evidence[0].end


@pytest.mark.parametrize(("part", "state"), [(0.48, "quiet"), (0.5, "quiet"), (0.52, "fired")])
def test_the_share_is_of_the_samples_with_an_idle_gpu(part: float, state: str) -> None:
    # The GPU idles in every other sample, and of these the CPU is busy in `part`: a quarter of all, more or less.
    def gpu(time: Floats) -> Floats:
        return np.where(np.arange(len(time)) % 2 == 1, 5.0, 80.0)

    def busy(time: Floats) -> Floats:
        idle = np.arange(len(time)) // 2
        return np.where(np.floor((idle + 1) * part + 1e-9) > np.floor(idle * part + 1e-9), 99.0, 30.0)

    snapshot = build(120, gpus=1, busy=busy, gpu=gpu, runs=[Run(0, 120)])
    found = ask("cpu-bottleneck", snapshot)
    assert found.state == state
    assert found.evidence[0].share == pytest.approx(part, abs=0.004)
    assert "which are 50 % of all" in found.evidence[0].text


def test_one_busy_core_of_many_is_no_busy_cpu() -> None:
    snapshot = build(60, cpus=8, gpus=1, gpu=5, series=one_core(1.0, 100, 20, cpus=8), runs=LOOP)
    assert ask("cpu-bottleneck", snapshot).state == "quiet"
    assert ask("saturated-core", snapshot).state == "fired"


def test_a_quota_that_is_used_up_is_a_busy_cpu() -> None:
    limits = {"cpus": [0, 1, 2, 3], "cpu_quota": 1.0, "memory": None, "source": "cgroup v2"}
    snapshot = build(60, gpus=1, gpu=5, busy=25, series={"container/cpu": 99.0}, limits=limits, runs=LOOP)
    assert ask("cpu-bottleneck", snapshot).state == "fired"


@pytest.mark.parametrize("rule", ["cpu-bottleneck", "io-bottleneck", "low-gpu-utilisation", "batch-size"])
def test_without_a_gpu_the_rules_on_it_abstain_and_say_why(rule: str) -> None:
    assert ask(rule, build(60, busy=99, runs=LOOP)).missing == (NO_GPU,)
    silent = build(60, gpus=1, gpu=math.nan, gpu_memory=math.nan, runs=LOOP)
    assert ask(rule, silent).missing == ("GPU utilisation: no value was measured",)


def test_a_rule_without_enough_samples_abstains() -> None:
    short = build(60, gpus=1, busy=99, gpu=1, runs=[Run(0, 1.5)])
    assert ask("cpu-bottleneck", short).missing == ("samples of GPU and CPU: 14 of the 20 that it takes",)
    assert ask("low-gpu-utilisation", short).missing == ("GPU samples: 14 of the 100 that it takes",)
    assert ask("saturated-core", short).state == "abstained"
    assert ask("too-many-workers", short).state == "abstained"


# GPUs


@pytest.mark.parametrize(("p95", "state"), [(69.5, "fired"), (70, "quiet"), (70.5, "quiet")])
def test_a_low_gpu_has_a_95th_percentile_below_seventy(p95: float, state: str) -> None:
    found = ask("low-gpu-utilisation", build(60, gpus=1, gpu=p95, runs=LOOP))
    assert found.state == state
    assert found.evidence[0].text.endswith(": it is low") == (state == "fired")
    assert json.loads(json.dumps(plain(found)))["times"] == (1 if state == "fired" else 0)


@pytest.mark.parametrize(("p5", "state"), [(9.5, "fired"), (10, "quiet"), (10.5, "quiet")])
def test_a_fluctuating_gpu_has_a_5th_percentile_below_ten(p5: float, state: str) -> None:
    found = ask("low-gpu-utilisation", build(60, gpus=1, gpu=share(0.2, p5, 90), runs=LOOP))
    assert found.state == state
    if state == "fired":
        assert "it rises and falls" in found.evidence[0].text
        assert found.evidence[0].value == pytest.approx(p5)


def test_each_gpu_is_looked_at_and_one_window_of_many_fires_nothing() -> None:
    idle = ask("low-gpu-utilisation", build(60, gpus=2, gpu=95, series={"gpu/1/utilisation": 20.0}, runs=LOOP))
    assert (idle.state, len(idle.evidence)) == ("fired", 2)
    assert ["it is low" in one.text for one in idle.evidence] == [False, True]

    def late(time: Floats) -> Floats:
        return np.where(time > 200, 20.0, 95.0)

    assert ask("low-gpu-utilisation", build(250, gpus=1, gpu=late, runs=[Run(0, 250)])).state == "quiet"
    assert ask("low-gpu-utilisation", build(450, gpus=1, gpu=late, runs=[Run(0, 450)])).state == "fired"


@pytest.mark.parametrize(("rise", "state"), [(4.75, "quiet"), (5, "quiet"), (5.25, "fired")])
def test_gpu_memory_increases_by_more_than_five_points_from_window_to_window(rise: float, state: str) -> None:
    snapshot = build(60, gpus=1, gpu_memory=lambda t: np.where(t > 30, 40.0 + rise, 40.0), runs=LOOP)
    found = ask("gpu-memory-increase", snapshot)
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(rise)
    if state == "fired":
        assert found.times == 1
        assert 27 < found.evidence[0].start < 30 < found.evidence[0].end < 33


def test_only_gpus_whose_memory_rose_are_evidence() -> None:
    series: dict[str, Value] = {"gpu/1/memory": lambda t: np.where(t > 30, 60.0, 40.0)}
    found = ask("gpu-memory-increase", build(60, gpus=2, gpu_memory=40.0, series=series, runs=LOOP))
    assert [one.text.split(":")[0] for one in found.evidence] == ["GPU 1"]


def test_what_warm_up_allocates_is_no_increase() -> None:
    warm = build(60, gpus=1, gpu_memory=lambda t: np.where(t > 1.5, 80.0, 5.0), runs=[Run(0, 60, warm_up=20)])
    assert ask("gpu-memory-increase", warm).state == "quiet"


@pytest.mark.parametrize(("apart", "state"), [(0.19, "quiet"), (0.21, "fired")])
def test_gpus_are_unbalanced_when_their_histograms_lie_more_than_a_fifth_apart(apart: float, state: str) -> None:
    series: dict[str, Value] = {"gpu/0/utilisation": 90.0, "gpu/1/utilisation": share(apart, 30, 90)}
    snapshot = build(120, gpus=2, series=series, runs=[Run(0, 120)])
    found = ask("load-balancing", snapshot)
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(apart, abs=1e-3)
    assert ask("load-balancing", snapshot, distance=found.evidence[0].value).state == "quiet"


def test_one_gpu_has_no_balance() -> None:
    assert ask("load-balancing", build(60, gpus=1, runs=LOOP)).missing == ("a second GPU that this kernel uses",)
    used = {"gpu/0/process_memory": 1e9, "gpu/1/process_memory": 0.0}
    assert ask("load-balancing", build(60, gpus=2, series=used, runs=LOOP)).state == "abstained"


# Workers and cores


@pytest.mark.parametrize(("many", "state"), [(6, "fired"), (7, "quiet"), (8, "quiet"), (20, "quiet"), (21, "fired")])
def test_workers_between_seventy_and_two_hundred_per_cent_of_the_cores(many: int, state: str) -> None:
    found = ask("dataloader", workers(many))
    assert (found.state, found.evidence[0].value) == (state, 10 * many)
    assert "prefetch 2" in found.evidence[0].text
    assert "pinned" not in found.evidence[0].text


def test_cores_are_those_that_may_be_used_and_threads_of_dali_count_like_workers() -> None:
    limits = {"cpus": [0, 1, 2, 3], "cpu_quota": 2.0, "memory": None, "source": "cgroup v2"}
    found = ask("dataloader", workers(2, limits=limits))
    assert (found.state, found.evidence[0].value) == ("quiet", 100)
    assert "this process may use 4 of 10 cores, quota 2" in found.evidence[0].text
    fields = {"backend": "dali-cpu", "knobs": {"workers": 8, "prefetch": 2, "threads": 1}}
    found = ask("dataloader", build(60, cpus=4, states=[fields], runs=[Run(0, 60, wait=0.05)]))
    assert (found.state, found.evidence[0].value) == ("fired", 25)
    assert "Raise the threads from 1 to 4" in found.advice
    told = ask("dataloader", build(60, states=[{"pin_memory": False}], runs=LOOP))
    assert told.evidence[0].text.endswith("memory not pinned")


def test_of_an_iterable_that_is_only_watched_the_workers_are_counted_or_unknown() -> None:
    watched = {"backend": "loader", "knobs": {"workers": None, "prefetch": None, "threads": None}}
    assert ask("dataloader", build(60, states=[watched], runs=LOOP)).state == "abstained"
    counted = build(60, states=[watched], series={"process/workers/count": 1.0}, runs=LOOP)
    assert ask("dataloader", counted).evidence[0].value == 25


@pytest.mark.parametrize(("high", "state"), [(94.5, "quiet"), (95, "fired"), (100, "fired")])
def test_a_saturated_core_is_at_ninety_five_per_cent(high: float, state: str) -> None:
    found = ask("saturated-core", build(60, series=one_core(1.0, high, 20), kernel=98.0, runs=LOOP))
    assert found.state == state
    if state == "fired":
        contains(found.evidence[0].text, "most often core 0", "the kernel took 98 % of one core")


def test_one_core_alone_is_never_saturated_among_others() -> None:
    assert ask("saturated-core", build(60, cpus=1, busy=100, runs=LOOP)).state == "abstained"


def test_rules_on_loading_are_not_asked_of_replayed_batches() -> None:
    runs = [Run(0, 30), Run(30, 60)]
    snapshot = build(60, gpus=1, busy=99, gpu=1, runs=runs, events=[switch(30, "torchvision", "synthetic")])
    assert [one.segment for one in findings("cpu-bottleneck", snapshot)] == ["train/1"]
    assert [one.segment for one in findings("saturated-core", snapshot)] == ["train/1", "train/2"]
