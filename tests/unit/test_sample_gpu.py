"""GPUs: every metric, NVML's words where there is none, and nothing held up by a driver that hangs."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.sample import gpu as gpu_module
from kernel_monitor.sample import nvml as nvml_module
from kernel_monitor.sample import wire
from kernel_monitor.sample.gpu import Gpus
from tests.unit.nvml_standin import GIB, FakeGpu, nvml, pynvml


@contextmanager
def started(gpus: list[FakeGpu], **options: Any) -> Iterator[Gpus]:
    with nvml(gpus, **options):
        probe = Gpus(0.1)
        probe.start()
        try:
            yield probe
        finally:
            probe.stop()
            probe._thread.join()


def values(probe: Gpus) -> dict[str, float]:
    found = probe.read(time.monotonic())
    return dict(zip([name for name, _ in probe.series], found, strict=True))


def changes_until(probe: Gpus, done: Callable[[], bool], seconds: float = 5.0) -> list[str]:
    """What `refresh` said until something is so."""
    said: list[str] = []
    until = time.monotonic() + seconds
    while True:
        said += probe.refresh(time.monotonic())
        if done():
            return said
        assert time.monotonic() < until, f"it did not come about in {seconds} s; {said}"
        time.sleep(0.02)


def test_every_metric_of_every_gpu() -> None:
    with started([FakeGpu(), FakeGpu(name="NVIDIA A10", utilisation=100, power_mw=75_500, limit_mw=150_000)]) as probe:
        assert values(probe) == {
            "gpu/0/utilisation": 37.0,
            "gpu/0/memory": 25.0,
            "gpu/0/power": 50.0,
            "gpu/0/temperature": 61.0,
            "gpu/0/memory_used": 30.0 * GIB,
            "gpu/0/power_draw": 350.0,
            "gpu/1/utilisation": 100.0,
            "gpu/1/memory": 25.0,
            "gpu/1/power": pytest.approx(50.333, abs=0.001),
            "gpu/1/temperature": 61.0,
            "gpu/1/memory_used": 30.0 * GIB,
            "gpu/1/power_draw": 75.5,
        }
        assert [unit for _, unit in probe.series[:6]] == ["%", "%", "%", "°C", "B", "W"]
        assert probe.hello() == {
            "gpus": [
                {"index": 0, "name": "NVIDIA H200", "memory_total": 120 * GIB, "reasons": {}},
                {"index": 1, "name": "NVIDIA A10", "memory_total": 120 * GIB, "reasons": {}},
            ],
            "gpu_reason": None,
        }


def test_new_answers_arrive() -> None:
    gpu = FakeGpu()
    with started([gpu]) as probe:
        gpu.utilisation = 93
        changes_until(probe, lambda: values(probe)["gpu/0/utilisation"] == 93.0)


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("nvmlDeviceGetUtilizationRates", {"utilisation"}),
        ("nvmlDeviceGetMemoryInfo", {"memory", "memory_used"}),
        ("nvmlDeviceGetPowerUsage", {"power", "power_draw"}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power"}),
        ("nvmlDeviceGetTemperature", {"temperature"}),
    ],
)
def test_a_metric_that_is_not_supported_is_missing_with_nvmls_words(function: str, missing: set[str]) -> None:
    gpu = FakeGpu(errors={function: pynvml.NVML_ERROR_NOT_SUPPORTED})
    with started([gpu, FakeGpu()]) as probe:
        found = values(probe)
        for name, value in found.items():
            assert math.isnan(value) == (name.split("/")[2] in missing and "gpu/0/" in name), name
        hello = probe.hello()
        assert set(hello["gpus"][0]["reasons"]) == missing
        assert all(reason.endswith("Not Supported") for reason in hello["gpus"][0]["reasons"].values())
        assert hello["gpus"][1]["reasons"] == {}
        assert hello["gpu_reason"] is None
        assert (hello["gpus"][0]["memory_total"] is None) == ("memory" in missing)


def test_the_older_question_for_the_temperature_may_be_gone() -> None:
    with started([FakeGpu(errors={"nvmlDeviceGetTemperature": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})]) as probe:
        assert values(probe)["gpu/0/temperature"] == 61.0


@pytest.mark.parametrize(
    ("code", "words"),
    [("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"), ("NVML_ERROR_DRIVER_NOT_LOADED", "Driver Not")],
)
def test_without_nvml_there_are_no_gpus_and_nvmls_words_say_why(code: str, words: str) -> None:
    with started([], init_error=getattr(pynvml, code)) as probe:
        assert list(probe.series) == []
        assert list(probe.read(time.monotonic())) == []
        assert probe.hello()["gpus"] == []
        assert words in probe.hello()["gpu_reason"]


def test_no_gpu_is_a_reason_too() -> None:
    with started([]) as probe:
        assert probe.hello() == {"gpus": [], "gpu_reason": "NVML lists no GPU"}


def test_pynvml_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml_module.NvmlError, match="nvidia-ml-py"):
        nvml_module.open_devices()


def test_a_driver_that_raises_something_else_is_told_and_ends_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    gpu = FakeGpu(total=0, used=0)  # divides by zero
    with started([gpu]) as probe:
        assert "ZeroDivisionError" in probe.hello()["gpu_reason"]
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_gpu_that_is_lost_goes_grey_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "RETRY_S", 0.3)
    lost, well = FakeGpu(), FakeGpu()
    questions = ["UtilizationRates", "MemoryInfo", "PowerUsage", "Temperature"]
    with started([lost, well]) as probe:
        lost.errors.update({f"nvmlDeviceGet{name}": pynvml.NVML_ERROR_GPU_IS_LOST for name in questions})
        said = changes_until(probe, lambda: len(probe.hello()["gpus"][0]["reasons"]) == 6)
        said += changes_until(probe, lambda: True)
        assert "GPU 0 utilisation: GPU is lost" in said
        found = values(probe)
        assert all(math.isnan(found[f"gpu/0/{part}"]) for part, _ in nvml_module.SERIES)
        assert found["gpu/1/utilisation"] == 37.0
        assert probe.hello()["gpus"][0]["reasons"]["temperature"] == "GPU is lost"
        lost.errors.clear()
        changes_until(probe, lambda: probe.hello()["gpus"][0]["reasons"] == {})
        assert values(probe)["gpu/0/utilisation"] == 37.0


def test_a_gpu_that_is_lost_from_the_start_has_its_rows() -> None:
    with started([FakeGpu(errors={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}), FakeGpu()]) as probe:
        assert probe.hello()["gpus"][0]["name"] == "GPU 0"
        assert probe.hello()["gpus"][0]["reasons"]["power"] == "GPU is lost"
        assert math.isnan(values(probe)["gpu/0/power"])
        assert values(probe)["gpu/1/power"] == 50.0


def test_a_driver_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "SILENT_S", 0.5)
    gpu = FakeGpu()
    with started([gpu]) as probe:
        gpu.delay = 0.6
        began = time.monotonic()
        assert values(probe)["gpu/0/utilisation"] == 37.0
        assert time.monotonic() - began < 0.3
        said = changes_until(probe, lambda: math.isnan(values(probe)["gpu/0/utilisation"]))
        assert "NVML does not answer: no GPU values" in said
        assert "has not answered" in probe.hello()["gpus"][0]["reasons"]["utilisation"]
        gpu.delay = 0.0
        assert "NVML answers again" in changes_until(probe, lambda: values(probe)["gpu/0/utilisation"] == 37.0)
        assert probe.hello()["gpus"][0]["reasons"] == {}


def test_questions_that_take_long_are_asked_less_often() -> None:
    gpu = FakeGpu(delay=0.02)  # three questions a round: 60 ms, so a round each 0.3 s
    with started([gpu]):
        before = gpu.asked["nvmlDeviceGetUtilizationRates"]
        time.sleep(1.5)
        assert 2 <= gpu.asked["nvmlDeviceGetUtilizationRates"] - before <= 6


def test_a_driver_that_starts_slowly_delays_only_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "SLOWEST_START_S", 0.1)
    began = time.monotonic()
    with started([FakeGpu()], init_delay=1.5) as probe:
        assert time.monotonic() - began < 1.0
        assert probe.hello() == {"gpus": [], "gpu_reason": "NVML has not answered yet"}
        assert list(probe.series) == []
        said = changes_until(probe, lambda: len(probe.series) == 6)
        assert "NVML lists 1 GPU(s)" in said
        assert probe.hello()["gpu_reason"] is None
        assert values(probe)["gpu/0/utilisation"] == 37.0


ROOT = Path(__file__).resolve().parents[2]

LATE = """
import os, sys
from tests.unit.nvml_standin import FakeGpu, nvml
from kernel_monitor.sample import gpu
gpu.SLOWEST_START_S = 0.1
sys.argv = ["sample", "--interval=0.05"]
from kernel_monitor.sample.__main__ import main
with nvml([FakeGpu(), FakeGpu(utilisation=80)], init_delay=0.5):
    sys.exit(main())
"""


def test_frames_carry_gpus_that_come_late_and_a_hello_goes_before_them() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LATE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        decoder, widths, hellos = wire.Decoder(), list[int](), list[dict[str, Any]]()
        last: wire.Frame | None = None
        until = time.monotonic() + 10
        while time.monotonic() < until and not (last and hellos[-1]["gpus"] and not math.isnan(last.values[-1])):
            for kind, payload in decoder.feed(process.stdout.read(65536)):
                if kind == wire.HELLO:
                    hellos.append(wire.decode_json(payload))
                elif kind == wire.FRAME:
                    last = wire.decode_frame(payload)
                    widths.append(len(last.values))
                    assert len(last.values) == len(hellos[-1]["series"])
        process.stdin.close()
        assert process.wait(5) == 0
    assert last is not None
    cores = len(hellos[0]["cpus"])
    assert len(hellos) == 2
    assert hellos[0]["gpus"] == []
    assert [gpu["name"] for gpu in hellos[1]["gpus"]] == ["NVIDIA H200"] * 2
    names = [series["name"] for series in hellos[1]["series"]]
    assert names[: 2 * cores + 6] == [series["name"] for series in hellos[0]["series"]]
    assert last.values[names.index("gpu/1/utilisation")] == 80.0
    assert last.values[names.index("gpu/0/power")] == 50.0
    assert widths[0] == len(hellos[0]["series"])
