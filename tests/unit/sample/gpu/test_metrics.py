"""Each metric of a GPU: its value, the time that it covers, and NVML's words where it is absent."""

from __future__ import annotations

import logging
import math
import re

import pytest

from benchmarks import metrics
from kernel_monitor.sample.gpu.nvml import RETRY_S
from tests.unit.gpu_asked import Ask, Asked, Clock
from tests.unit.nvml_standin import GIB, FakeGpu, FakeMig, nvml, pynvml

# By the function of NVML (or the field, or the GPM metric) that tells them.
TOLD_BY = {
    "nvmlDeviceGetUtilizationRates": {"memory_activity"},
    "nvmlDeviceGetMemoryInfo": {"memory", "memory_used"},
    "nvmlDeviceGetPowerUsage": {"power", "power_draw"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power", "power_limit"},
    "nvmlDeviceGetTemperature": {"temperature"},
    "nvmlDeviceGetClockInfo": {"clock_sm", "clock_memory"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttled"},
    "nvmlDeviceGetEncoderUtilization": {"encoder"},
    "nvmlDeviceGetDecoderUtilization": {"decoder"},
    "nvmlDeviceGetJpgUtilization": {"jpeg"},
    "nvmlDeviceGetOfaUtilization": {"ofa"},
    "nvmlDeviceGetFieldValues": {
        *("temperature_memory", "ecc_corrected", "ecc_uncorrected"),
        *("nvlink_received", "nvlink_sent"),
    },
    "field 82": {"temperature_memory"},
    "field 3": {"ecc_corrected"},
    "field 4": {"ecc_uncorrected"},
    "field 138": {"nvlink_sent"},
    "field 139": {"nvlink_received"},
    "nvmlDeviceGetPcieThroughput": {"pcie_received", "pcie_sent"},
    "nvmlDeviceGetComputeRunningProcesses": {"process_memory"},
    "nvmlDeviceGetProcessUtilization": {"process_utilisation"},
    "nvmlGpmSampleGet": {
        *("sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp16_active", "fp32_active", "fp64_active"),
        *("gpm_pcie_received", "gpm_pcie_sent"),
    },
    "gpm 5": {"tensor_active"},
}
ERRORS = ["NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "UNKNOWN"]


def full_gpu() -> FakeGpu:
    return FakeGpu(
        ecc_corrected=5,
        ecc_uncorrected=1,
        processes=[(4001, 7 * GIB, 40), (4002, 2 * GIB, 11), (9, 20 * GIB, 30)],
        graphics=[(4001, 6 * GIB, 0), (10, GIB, 0)],
        gpm={2: 80.5, 3: 33.0, 5: 45.0, 10: 60.0, 13: 3.0, 12: 12.0, 11: 0.0, 21: 900.0, 20: 50.0},
    )


def test_every_metric(ask: Ask) -> None:
    gpu = full_gpu()
    asked = ask(gpu)
    asked.round()
    gpu.nvlink_received_kib, gpu.nvlink_sent_kib = 3_000_000, 1_000_000
    asked.round(2.0)
    assert asked.reasons() == {}
    assert asked.values() == {
        "utilisation": 37.0, "memory_activity": 12.0, "memory": 25.0, "memory_used": 30.0 * GIB, "power": 50.0,
        "power_draw": 350.0, "decoder": 2.0, "encoder": 1.0, "jpeg": 3.0, "ofa": 4.0, "temperature": 61.0,
        "temperature_memory": 70.0, "clock_sm": 1980.0, "clock_memory": 3201.0, "power_limit": 700.0,
        "throttled": 0.0, "ecc_corrected": 5.0, "ecc_uncorrected": 1.0, "process_memory": 9.0 * GIB,
        "process_utilisation": 51.0, "sm_active": 80.5, "sm_occupancy": 33.0, "tensor_active": 45.0,
        "dram_active": 60.0, "fp16_active": 3.0, "fp32_active": 12.0, "fp64_active": 0.0,
        "gpm_pcie_received": 900.0 * (1 << 20), "gpm_pcie_sent": 50.0 * (1 << 20), "pcie_received": 900e6,
        "pcie_sent": 50e6, "nvlink_received": 3_000_000 * 1024 / 2.0, "nvlink_sent": 1_000_000 * 1024 / 2.0,
    }  # fmt: skip


def test_they_are_those_of_the_table_with_its_units(ask: Ask) -> None:
    gpu = FakeGpu(mig_mode=1, migs=[FakeMig("1g.10gb", 7, GIB, 10 * GIB)])
    _, desks = ask(gpu).session.tables[0]
    emitted = {f"gpu/0/{part}": unit for _, desk in desks for part, unit in desk.table.parts}
    groups = {
        f"gpu/0/{part}": question.group for _, desk in desks for question in desk.queries for part, _ in question.parts
    }
    for name, unit in emitted.items():
        (metric,) = metrics.matching(name)
        assert (metric.unit, metric.group) == (unit, groups[name]), name
    wanted = {
        metric.name.replace("<i>", "0").replace("<j>", "0") for metric in metrics.METRICS if "gpu/" in metric.name
    }
    assert set(emitted) == wanted


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("function", TOLD_BY)
def test_a_metric_that_is_refused_is_missing_with_nvmls_words(
    ask: Ask, clock: Clock, function: str, error: str
) -> None:
    code = getattr(pynvml, f"NVML_ERROR_{error}")
    words = str(pynvml.NVMLError(code))
    refused, well = full_gpu(), full_gpu()
    refused.errors[function] = code
    asked = ask(refused, well)
    asked.round()
    asked.round(1.0)
    reasons, values = asked.reasons(0), asked.values(0)
    assert set(reasons) == TOLD_BY[function]
    assert all(reason.removeprefix("power limit: ") == words for reason in reasons.values())
    assert {part for part, value in values.items() if math.isnan(value)} == TOLD_BY[function]
    assert asked.reasons(1) == {}


def test_a_refused_question_is_asked_seldom_and_its_metric_comes_back(ask: Ask) -> None:
    gpu = full_gpu()
    gpu.errors["nvmlDeviceGetJpgUtilization"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    asked = ask(gpu)
    for _ in range(8):
        asked.round(1.0)
    assert (gpu.asked["nvmlDeviceGetJpgUtilization"], gpu.asked["nvmlDeviceGetOfaUtilization"]) == (1, 8)
    del gpu.errors["nvmlDeviceGetJpgUtilization"]
    assert asked.round(RETRY_S) == ["GPU 0 jpeg: is back"]
    assert asked.values()["jpeg"] == 3.0


def test_utilisation_is_the_mean_of_the_samples_since_the_last_asking(ask: Ask, clock: Clock) -> None:
    def at(seconds: float) -> int:
        return round((start + seconds) * 1e6)

    start = clock.wall
    gpu = FakeGpu(samples=[(at(-0.5), 90), (at(-0.3), 80), (at(-0.1), 70)])
    asked = ask(gpu)
    asked.round()
    # Of seconds of buffer only the last sample is of now; it covers the time since the one before.
    assert asked.values()["utilisation"] == 70.0
    assert asked.reading("gpu") == pytest.approx((0.1, 0.2), abs=1e-5)
    gpu.samples = [*(gpu.samples or []), (at(0.1), 10), (at(0.3), 30), (at(0.35), 201)]
    asked.round(0.4)
    assert asked.values()["utilisation"] == 20.0  # a sample above 100 % is none
    assert asked.reading("gpu") == pytest.approx((0.1, 0.4), abs=1e-5)
    asked.round(0.5)  # no new one: held, and older
    assert asked.values()["utilisation"] == 20.0
    assert asked.reading("gpu") == pytest.approx((0.6, 0.4), abs=1e-5)
    asked.round(2.0)  # the buffer stands still: the rate that NVML gives, over a window of up to 1 s
    assert asked.values()["utilisation"] == 37.0
    assert asked.reading("gpu") == (0.0, 1.0)
    assert asked.reasons() == {}


@pytest.mark.parametrize("error", ERRORS)
def test_without_samples_utilisation_is_nvmls_rate(ask: Ask, error: str) -> None:
    gpu = full_gpu()
    gpu.errors["nvmlDeviceGetSamples"] = getattr(pynvml, f"NVML_ERROR_{error}")
    asked = ask(gpu)
    for _ in range(20):
        asked.round(0.1)
    assert asked.reasons() == {}
    assert asked.values()["utilisation"] == 37.0
    assert asked.reading("gpu") == (0.0, 1.0)
    assert gpu.asked["nvmlDeviceGetSamples"] == 1


def test_without_rates_and_samples_there_is_no_utilisation(ask: Ask) -> None:
    gpu = full_gpu()
    gpu.errors |= dict.fromkeys(["nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"], pynvml.NVML_ERROR_UNKNOWN)
    asked = ask(gpu)
    asked.round()
    assert asked.reasons() == dict.fromkeys(["utilisation", "memory_activity"], "Unknown Error")


def test_nvml_is_not_asked_more_often_than_its_windows_allow(ask: Ask) -> None:
    gpu = full_gpu()
    asked = ask(gpu)
    for _ in range(100):
        asked.round(0.1)
    assert gpu.asked["nvmlDeviceGetMemoryInfo"] >= 100
    assert gpu.asked["nvmlDeviceGetSamples"] <= 70  # a sample every 1/6 s
    assert gpu.asked["nvmlDeviceGetUtilizationRates"] <= 52
    assert gpu.asked["nvmlDeviceGetTemperature"] <= 11


def test_windows_of_engines_bus_and_counters(ask: Ask) -> None:
    gpu = full_gpu()
    gpu.engine_period_us = 250_000
    asked = ask(gpu)
    asked.round()
    asked.round(1.25)
    assert asked.reading("gpu-slow") == (0.0, 0.25)
    assert asked.reading("gpu-bus") == (0.0, 0.02)
    assert asked.reading("gpm") == (0.0, 1.25)
    gpu.errors["nvmlDeviceGetPcieThroughput"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    asked = ask(gpu)
    asked.round()
    asked.round(1.5)
    assert asked.reading("gpu-bus") == pytest.approx((0.0, 1.5), abs=1e-5)


def test_counters_that_begin_anew_are_a_gap(ask: Ask) -> None:
    gpu = full_gpu()
    gpu.nvlink_received_kib = 5_000_000
    asked = ask(gpu)
    asked.round()
    gpu.nvlink_received_kib = 1
    asked.round(1.0)
    assert math.isnan(asked.values()["nvlink_received"])
    gpu.nvlink_received_kib = 1001
    asked.round(1.0)
    assert asked.values()["nvlink_received"] == pytest.approx(1000 * 1024)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x04, ["power cap"]),
        (0x08, ["hardware slowdown"]),
        (0x20, ["software thermal slowdown"]),
        (0x48, ["hardware slowdown", "hardware thermal slowdown"]),
        (0x80, ["power brake"]),
        (0x01, []),  # idle
        (0x02, []),  # clocks that a person set
        (0x110, []),  # sync boost, a display's clock
    ],
)
def test_clocks_are_throttled_by_harmful_reasons_only(ask: Ask, bits: int, words: list[str]) -> None:
    gpu = FakeGpu(clocks_event=bits)
    asked = ask(gpu)
    asked.round()
    assert asked.values()["throttled"] == (100.0 if words else 0.0)
    assert list(asked.session.devices[0].throttle) == words
    gpu.clocks_event = 0
    asked.round(30.0)
    assert asked.values()["throttled"] == 0.0
    assert list(asked.session.devices[0].throttle) == words  # still named: it may come and go each second
    asked.round(31.0)
    assert asked.session.devices[0].throttle == ()


@pytest.mark.parametrize(
    ("function", "part", "value"),
    [
        ("nvmlDeviceGetTemperature", "temperature", 61.0),
        ("nvmlDeviceGetCurrentClocksEventReasons", "throttled", 0.0),
        ("nvmlDeviceGetComputeRunningProcesses", "process_memory", 9.0 * GIB),
    ],
)
def test_a_driver_of_another_age_is_asked_by_the_other_name(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, function: str, part: str, value: float
) -> None:
    gpu = full_gpu()

    def gone(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    with nvml([gpu]), monkeypatch.context() as patched:
        patched.setattr(pynvml, function, gone)
        asked = Asked(clock)
        asked.round()
        assert asked.values()[part] == value


def test_a_memory_of_0_degrees_is_none(ask: Ask) -> None:
    asked = ask(FakeGpu(temperature_memory=0))
    asked.round()
    assert math.isnan(asked.values()["temperature_memory"])
    assert "0 °C" in asked.reasons()["temperature_memory"]


def test_an_answer_that_makes_no_sense_is_told_once_and_ends_nothing(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    asked = ask(FakeGpu(total=0, used=0))  # divides by zero
    asked.round()
    asked.round(RETRY_S)
    assert re.fullmatch(r"ZeroDivisionError: (float )?division by zero", asked.reasons()["memory"])
    assert asked.values()["utilisation"] == 37.0
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
