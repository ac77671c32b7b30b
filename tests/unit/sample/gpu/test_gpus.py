"""GPUs as the sampler has them: the hello, the frames, and nothing held up by a driver that hangs, goes or returns."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernel_monitor.sample.gpu import gpus as gpu_module
from kernel_monitor.sample.gpu import gpus as gpus_module
from kernel_monitor.sample.gpu import nvml as nvml_module
from kernel_monitor.sample.gpu.gpus import Gpus
from tests.unit.checks import wait_for
from tests.unit.nvml_standin import GIB, FakeGpu, FakeMig, Machine, nvml, pynvml

PIDS = {"process_memory", "process_utilisation"}
"""What is missing while nobody has told the processes."""
METRICS = 33


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked each second, is asked each tenth of one, and the threads end soon."""
    monkeypatch.setattr(gpus_module, "SLOW_S", 0.1)
    monkeypatch.setattr(nvml_module, "WAIT_MS", 20)


@contextmanager
def running() -> Iterator[Gpus]:
    """Probe whatever pynvml has now."""
    probe = Gpus(0.1)
    probe.start()
    try:
        yield probe
    finally:
        probe.stop()
        probe._thread.join(20)
        assert not probe._thread.is_alive()


@contextmanager
def started(gpus: list[FakeGpu], **options: Any) -> Iterator[tuple[Gpus, Machine]]:
    with nvml(gpus, **options) as machine, running() as probe:
        yield probe, machine


def values(probe: Gpus) -> dict[str, float]:
    found = probe.read()
    return dict(zip([name for name, _ in probe.series], found, strict=True))


def missing(probe: Gpus, gpu: int = 0) -> set[str]:
    """The metrics of a GPU that have no value."""
    of_gpu = {name.split("/", 2)[2]: value for name, value in values(probe).items() if name.startswith(f"gpu/{gpu}/")}
    return {part for part, value in of_gpu.items() if math.isnan(value)}


def reasons(probe: Gpus, gpu: int = 0) -> dict[str, str]:
    found: dict[str, str] = probe.hello()["gpus"][gpu]["reasons"]
    return found


def changes_until(probe: Gpus, done: Callable[[], bool], seconds: float = 10.0) -> list[str]:
    """What `refresh` said until something is so."""
    said: list[str] = []
    until = time.monotonic() + seconds
    while True:
        said += probe.refresh(time.monotonic())
        if done():
            return said
        assert time.monotonic() < until, f"it did not come about in {seconds} s; {said}"
        time.sleep(0.02)


def test_every_gpu_has_its_series_and_its_place_in_the_hello() -> None:
    a10 = FakeGpu(name="NVIDIA A10", utilisation=100, power_mw=75_500, limit_mw=150_000)
    with started([FakeGpu(), a10]) as (probe, _):
        names = [name for name, _ in probe.series]
        assert len(names) == len(set(names)) == 2 * METRICS
        assert [name.split("/")[1] for name in names] == ["0"] * METRICS + ["1"] * METRICS
        assert dict(probe.series)["gpu/1/temperature"] == "°C"
        probe.set_processes([4001])
        changes_until(probe, lambda: not missing(probe, 0) | missing(probe, 1))
        found = values(probe)
        assert (found["gpu/0/utilisation"], found["gpu/1/utilisation"]) == (37.0, 100.0)
        assert (found["gpu/1/power"], found["gpu/1/power_draw"]) == pytest.approx((50.333, 75.5), abs=0.001)
        nothing: dict[str, Any] = {"reasons": {}, "throttle": [], "mig": []}
        assert probe.hello() == {
            "gpus": [
                {"index": 0, "name": "NVIDIA H200", "memory_total": 120 * GIB, **nothing},
                {"index": 1, "name": "NVIDIA A10", "memory_total": 120 * GIB, **nothing},
            ],
            "gpu_reason": None,
        }


def test_each_group_tells_its_age_and_window() -> None:
    with started([FakeGpu(), FakeGpu(engine_period_us=250_000)]) as (probe, _):
        changes_until(probe, lambda: not math.isnan(values(probe)["gpu/1/sm_active"]))
        now = time.monotonic()
        found = {group: (age, window) for group, age, window in probe.groups(now)}
        assert list(found) == ["gpu", "gpu-slow", "gpu-bus", "gpm"]
        assert all(0 <= age < 3 for age, _ in found.values())
        assert found["gpu"][1] == pytest.approx(1 / 6, abs=0.34)
        assert found["gpu-slow"][1] == 0.25  # the longest of all GPUs
        assert found["gpu-bus"][1] == 0.02
        assert 0.05 < found["gpm"][1] < 3
        later = {group: age for group, age, _ in probe.groups(now + 500)}
        assert 495 < later["gpm"] < 505
    with started([]) as (probe, _):
        assert probe.groups(time.monotonic()) == []


def test_new_answers_arrive() -> None:
    gpu = FakeGpu()
    with started([gpu]) as (probe, _):
        gpu.utilisation = 93
        gpu.temperature = 80
        changes_until(probe, lambda: values(probe)["gpu/0/utilisation"] == 93.0)
        changes_until(probe, lambda: values(probe)["gpu/0/temperature"] == 80.0)


def test_frames_may_come_at_another_interval() -> None:
    gpu = FakeGpu()
    with started([gpu]) as (probe, _):
        probe.set_interval(60)
        time.sleep(0.3)
        before = gpu.asked["nvmlDeviceGetMemoryInfo"]
        time.sleep(1)
        assert gpu.asked["nvmlDeviceGetMemoryInfo"] == before
        # Nor is that taken for silence.
        assert "NVML does not answer: no load, memory and power" not in probe.refresh(time.monotonic() + 10)
        probe.set_interval(0.1)
        changes_until(probe, lambda: gpu.asked["nvmlDeviceGetMemoryInfo"] > before + 3, 3)


def test_throttling_and_mig_are_told() -> None:
    gpu = FakeGpu(mig_mode=1, migs=[FakeMig("MIG 1g.10gb", 7, GIB, 10 * GIB)])
    with started([gpu, FakeGpu()]) as (probe, _):
        assert probe.hello()["gpus"][0]["mig"] == [{"index": 0, "name": "MIG 1g.10gb", "memory_total": 10 * GIB}]
        assert ("gpu/0/mig/0/memory", "%") in probe.series
        assert "mig" in [group for group, _, _ in probe.groups(time.monotonic())]
        gpu.clocks_event = 0x44
        said = changes_until(probe, lambda: probe.hello()["gpus"][0]["throttle"] != [])
        assert said == ["GPU 0: clocks lowered: power cap, hardware thermal slowdown"]


def test_mig_instances_that_go_take_their_series_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_monitor.sample.gpu.gauges.RETRY_S", 0.2)
    gpu = FakeGpu(mig_mode=1, migs=[FakeMig(f"MIG {n}", 7 + n, GIB, 10 * GIB) for n in range(2)])
    with started([gpu, FakeGpu()]) as (probe, _):
        assert len(probe.series) == 2 * METRICS + 6
        gpu.migs = gpu.migs[:1]
        said = changes_until(probe, lambda: len(probe.series) == 2 * METRICS + 3)
        assert "GPU 0 MIG: 1 instance(s)" in said
        assert values(probe)["gpu/1/utilisation"] == 37.0


def test_xid_events_are_notices() -> None:
    with started([FakeGpu(), FakeGpu()]) as (probe, machine):
        machine.events.put((1, 79))
        notices: list[dict[str, Any]] = []

        def told() -> bool:
            notices.extend(probe.notices())
            return bool(notices)

        wait_for(told, 10)
        assert [(notice["kind"], notice["gpu"], notice["code"]) for notice in notices] == [("xid", 1, 79)]
        assert probe.notices() == []


def test_a_metric_without_support_keeps_its_place() -> None:
    refused = dict.fromkeys(["nvmlDeviceGetJpgUtilization", "nvmlGpmSampleGet"], pynvml.NVML_ERROR_NOT_SUPPORTED)
    with started([FakeGpu(errors=refused), FakeGpu()]) as (probe, _):
        assert len(probe.series) == 2 * METRICS
        assert {"jpeg", "sm_active"} <= missing(probe)
        assert reasons(probe)["jpeg"] == reasons(probe)["tensor_active"] == "Not Supported"
        assert set(reasons(probe, 1)) <= PIDS
        assert probe.hello()["gpu_reason"] is None
    refused = {"nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_NO_PERMISSION}
    with started([FakeGpu(errors=refused)]) as (probe, _):
        assert probe.hello()["gpus"][0]["memory_total"] is None
        assert reasons(probe)["memory"] == "Insufficient Permissions"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "Driver Not"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "stop and start the monitor"),
    ],
)
def test_without_nvml_there_are_no_gpus_and_nvmls_words_say_why(code: str, words: str) -> None:
    with started([], init_error=getattr(pynvml, code)) as (probe, _):
        assert list(probe.series) == []
        assert list(probe.read()) == []
        assert probe.hello()["gpus"] == []
        assert words in probe.hello()["gpu_reason"]


def test_no_gpu_is_a_reason_too() -> None:
    with started([]) as (probe, machine):
        assert probe.hello() == {"gpus": [], "gpu_reason": "NVML lists no GPU"}
        assert not machine.running  # nothing is held that is of no use


def test_pynvml_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml_module.NvmlError, match="nvidia-ml-py"):
        nvml_module.open_devices()


def test_the_driver_is_missing_for_real() -> None:
    """Not where there is one: there `tests/gpu` shows the opposite."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = str(error)
        with running() as probe:
            assert probe.hello() == {"gpus": [], "gpu_reason": words}
            assert list(probe.series) == []
    else:
        pynvml.nvmlShutdown()


def test_a_library_that_breaks_in_a_way_of_its_own_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with nvml([FakeGpu()]):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1 // 0)
        with running() as probe:
            assert "ZeroDivisionError" in probe.hello()["gpu_reason"]
    assert "ZeroDivisionError" in caplog.text


def test_a_gpu_that_is_lost_goes_grey_and_comes_back_when_nvml_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "REOPEN_S", 2.0)
    lost = FakeGpu()
    with started([lost, FakeGpu()]) as (probe, machine):
        probe.set_processes([4001])
        changes_until(probe, lambda: not missing(probe))
        series = list(probe.series)
        lost.lost_load = machine.loads
        said = changes_until(probe, lambda: len(missing(probe)) == METRICS)
        said += changes_until(probe, lambda: len(reasons(probe)) == METRICS)
        assert any(
            text.startswith("GPU 0 ") and "memory_used" in text and text.endswith(": GPU is lost") for text in said
        )
        assert set(reasons(probe).values()) == {"GPU is lost"}
        assert not missing(probe, 1)
        assert values(probe)["gpu/1/utilisation"] == 37.0
        said = changes_until(probe, lambda: not missing(probe), 15)
        assert "NVML was started again" in said
        assert machine.loads == 2
        assert reasons(probe) == {}
        assert list(probe.series) == series
        time.sleep(1)
        assert machine.loads == 2  # all is well: it is left alone


def test_a_gpu_that_stays_lost_is_looked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "REOPEN_S", 0.3)
    with started([FakeGpu(errors={"*": pynvml.NVML_ERROR_GPU_IS_LOST}), FakeGpu()]) as (probe, machine):
        time.sleep(3)
        assert 2 <= machine.loads <= 4  # after 0.3, 0.6, 1.2 s
        changes_until(probe, lambda: missing(probe, 1) <= PIDS)


def test_a_gpu_that_answers_again_by_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "REOPEN_S", 2.0)
    gpu = FakeGpu()
    with started([gpu]) as (probe, machine):
        gpu.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
        changes_until(probe, lambda: "memory" in missing(probe))
        time.sleep(3)
        assert machine.loads == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [("DRIVER_NOT_LOADED", "Driver Not Loaded"), ("LIB_RM_VERSION_MISMATCH", "stop and start the monitor")],
)
def test_a_driver_that_is_loaded_again(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    monkeypatch.setattr(gpu_module, "REOPEN_S", 0.3)
    with started([FakeGpu()]) as (probe, machine):
        series = list(probe.series)
        machine.init_error = getattr(pynvml, f"NVML_ERROR_{code}")
        machine.running = False  # every call now says Uninitialized, and to start is refused
        said = changes_until(probe, lambda: any(words in reason for reason in reasons(probe).values()))
        assert any(text.startswith("GPUs: ") and words in text for text in said)
        # The rows stay, grey, with the reason.
        assert list(probe.series) == series
        assert len(missing(probe)) == METRICS
        assert set(reasons(probe)) >= {"utilisation", "temperature", "pcie_sent", "sm_active"}
        assert all(math.isnan(age) for _, age, _ in probe.groups(time.monotonic()))
        assert probe.hello()["gpu_reason"] is None
        machine.init_error = None
        changes_until(probe, lambda: missing(probe) <= PIDS, 20)
        assert values(probe)["gpu/0/utilisation"] == 37.0


def test_a_driver_that_is_loaded_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "REOPEN_S", 0.2)
    with started([FakeGpu()], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED) as (probe, machine):
        assert probe.hello() == {"gpus": [], "gpu_reason": "Driver Not Loaded"}
        machine.init_error = None
        assert "NVML lists 1 GPU(s)" in changes_until(probe, lambda: len(probe.series) == METRICS)
        assert probe.hello()["gpu_reason"] is None


def test_a_gpu_that_is_lost_from_the_start_has_its_rows() -> None:
    lost = FakeGpu(errors={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST})
    with started([lost, FakeGpu()]) as (probe, _):
        assert probe.hello()["gpus"][0]["name"] == "GPU 0"
        assert reasons(probe)["power"] == "GPU is lost"
        assert math.isnan(values(probe)["gpu/0/power"])
        assert values(probe)["gpu/1/power"] == 50.0


def test_a_driver_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "SILENT_S", 1.0)
    free = threading.Event()
    with started([FakeGpu()]) as (probe, _):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: free.wait(30) and None)
        began = time.monotonic()
        assert values(probe)["gpu/0/utilisation"] == 37.0
        assert time.monotonic() - began < 0.3
        said = changes_until(probe, lambda: math.isnan(values(probe)["gpu/0/utilisation"]))
        assert "NVML does not answer: no load, memory and power" in said
        assert "has not answered" in reasons(probe)["utilisation"]
        monkeypatch.undo()
        monkeypatch.setattr(nvml_module, "WAIT_MS", 20)
        free.set()
        said = changes_until(probe, lambda: values(probe)["gpu/0/utilisation"] == 37.0)
        assert "NVML answers again: load, memory and power" in said


def test_a_call_that_hangs_takes_only_its_own_thread_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "SILENT_S", 1.0)
    free = threading.Event()
    with started([FakeGpu()]) as (probe, _):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetPcieThroughput", lambda *_: free.wait(30) and 7)
        said = changes_until(probe, lambda: "pcie_sent" in missing(probe))
        assert "NVML does not answer: no PCIe and NVLink" in said
        assert "has not answered" in reasons(probe)["nvlink_sent"]
        assert missing(probe) <= {"pcie_sent", "pcie_received", "nvlink_sent", "nvlink_received"} | PIDS
        free.set()
        changes_until(probe, lambda: values(probe)["gpu/0/pcie_sent"] == 7000.0)


def test_questions_that_take_long_are_asked_less_often() -> None:
    gpu = FakeGpu(delay=0.03)  # up to four questions a round: 60 to 120 ms, so a round each 0.3 to 0.6 s
    with started([gpu]):
        before = gpu.asked["nvmlDeviceGetPowerUsage"]
        time.sleep(2.0)
        assert 1 <= gpu.asked["nvmlDeviceGetPowerUsage"] - before <= 7


def test_a_driver_that_starts_slowly_delays_only_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "SLOWEST_START_S", 0.1)
    began = time.monotonic()
    with started([FakeGpu()], init_delay=1.5) as (probe, _):
        assert time.monotonic() - began < 1.0
        assert probe.hello() == {"gpus": [], "gpu_reason": "NVML has not answered yet"}
        assert list(probe.series) == []
        said = changes_until(probe, lambda: len(probe.series) == METRICS)
        assert "NVML lists 1 GPU(s)" in said
        assert probe.hello()["gpu_reason"] is None
        assert values(probe)["gpu/0/utilisation"] == 37.0
