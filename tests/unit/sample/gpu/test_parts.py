"""What belongs to a part of a GPU: the kernel's processes, MIG instances, and Xid events."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest

from kernel_monitor.sample.gpu import gauges as gpu_gauges
from kernel_monitor.sample.gpu import nvml as nvml_module
from kernel_monitor.sample.gpu.nvml import RETRY_S, open_devices
from tests.unit.checks import wait_for
from tests.unit.gpu_asked import Ask
from tests.unit.nvml_standin import GIB, FakeGpu, FakeMig, nvml, pynvml


def test_only_the_kernels_processes_count(ask: Ask) -> None:
    other = os.getppid()
    gpu = FakeGpu(processes=[(other, 5 * GIB, 90)])
    asked = ask(gpu)
    asked.round()
    assert asked.values()["process_memory"] == 0.0
    assert asked.values()["process_utilisation"] == 0.0
    asked.session.set_processes(frozenset({other}))
    asked.round(1.0)
    assert asked.values()["process_memory"] == 5.0 * GIB
    assert asked.values()["process_utilisation"] == 90.0
    gpu.processes = []  # it ended: its last sample counts no longer than three seconds
    asked.round(1.0)
    assert asked.values()["process_memory"] == 0.0
    assert asked.values()["process_utilisation"] == 90.0
    asked.round(2.5)
    assert asked.values()["process_utilisation"] == 0.0


def test_what_the_driver_kept_from_earlier_and_what_cannot_be_are_not_of_now(ask: Ask) -> None:
    gpu = FakeGpu(processes=[(4001, GIB, 80)], process_age_s=20.0)
    asked = ask(gpu)
    asked.round()
    assert asked.values()["process_utilisation"] == 0.0
    gpu.process_age_s = 0.5
    asked.round(1.0)
    assert asked.values()["process_utilisation"] == 80.0
    asked = ask(FakeGpu(processes=[(4001, GIB, 4_000_000), (4002, GIB, 12)]))
    asked.round()
    assert asked.values()["process_utilisation"] == 12.0


def test_before_the_tree_is_known_there_is_a_reason_and_not_for_long(ask: Ask) -> None:
    asked = ask(FakeGpu(processes=[(4001, GIB, 4)]), pids=None)
    asked.round()
    assert asked.reasons() == dict.fromkeys(["process_memory", "process_utilisation"], gpu_gauges.NOT_YET)
    asked.session.set_processes(frozenset({4001}))
    asked.round(gpu_gauges.SOON_S)
    assert asked.values()["process_memory"] == GIB


def test_in_a_container_pids_are_those_of_others(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_gauges, "in_first_namespace", lambda: False)
    gpu = FakeGpu(processes=[(4001, GIB, 4)])
    asked = ask(gpu)
    asked.round()
    words = "NVML names processes of another pid namespace"
    assert asked.reasons() == dict.fromkeys(["process_memory", "process_utilisation"], words)
    assert math.isnan(asked.values()["process_memory"])
    assert "nvmlDeviceGetProcessUtilization" not in gpu.asked


def test_pids_that_are_not_there_and_memory_that_is_not_told_have_reasons(ask: Ask) -> None:
    nobody = 2**22 + 1  # Linux gives numbers up to 2**22
    asked = ask(FakeGpu(processes=[(nobody, GIB, 4)]), FakeGpu())
    asked.round()
    assert asked.reasons() == dict.fromkeys(["process_memory", "process_utilisation"], gpu_gauges.ELSEWHERE)
    assert asked.values(1)["process_memory"] == 0.0
    asked = ask(FakeGpu(processes=[(4001, -1, 4)]))
    asked.round()
    assert asked.reasons() == {"process_memory": gpu_gauges.NOT_GIVEN}


def mig_gpu(count: int) -> FakeGpu:
    gpu = FakeGpu(
        mig_mode=1,
        migs=[FakeMig(f"MIG 1g.10gb {n}", 7 + n, (n + 1) * GIB, 10 * GIB, sm_active=20.0 + n) for n in range(count)],
    )
    gpu.errors |= dict.fromkeys(
        ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples"], pynvml.NVML_ERROR_NOT_SUPPORTED
    )
    return gpu


def test_mig_instances_have_their_memory_and_activity_and_the_gpu_says_why_it_has_no_utilisation(ask: Ask) -> None:
    asked = ask(mig_gpu(2), FakeGpu())
    asked.round()
    asked.round(1.0)
    values = {part: value for part, value in asked.values().items() if part.startswith("mig/")}
    assert values == {
        "mig/0/memory": 10.0,
        "mig/0/memory_used": 1.0 * GIB,
        "mig/0/sm_active": 20.0,
        "mig/1/memory": 20.0,
        "mig/1/memory_used": 2.0 * GIB,
        "mig/1/sm_active": 21.0,
    }
    words = "Not Supported (MIG is on)"
    assert asked.reasons() == dict.fromkeys(["utilisation", "memory_activity"], words)
    assert [(each.index, each.name, each.memory_total) for each in asked.session.migs[0].instances] == [
        (0, "MIG 1g.10gb 0", 10 * GIB),
        (1, "MIG 1g.10gb 1", 10 * GIB),
    ]
    assert not any(part.startswith("mig/") for part in asked.values(1))
    assert asked.reading("mig") == (0.0, 0.0)


def test_mig_instances_come_and_go(ask: Ask) -> None:
    gpu = mig_gpu(3)
    asked = ask(gpu)
    asked.round(1.0)
    gpu.migs = gpu.migs[:1]
    assert asked.round(RETRY_S + 1) == ["GPU 0 MIG: 1 instance(s)"]
    asked.round(1.0)
    assert sum(part.startswith("mig/") for part in asked.values()) == 3
    assert asked.values()["mig/0/memory"] == 10.0


@pytest.mark.parametrize("mode", [None, 0])
def test_a_gpu_without_mig_has_no_such_rows(ask: Ask, mode: int | None) -> None:
    asked = ask(FakeGpu(mig_mode=mode))
    assert asked.round() == []
    assert not any(part.startswith("mig/") for part in asked.values())


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "NO_PERMISSION"])
def test_mig_instances_without_counters_still_have_their_memory(ask: Ask, code: str) -> None:
    gpu = mig_gpu(1)
    gpu.errors["nvmlGpmMigSampleGet"] = getattr(pynvml, f"NVML_ERROR_{code}")
    asked = ask(gpu)
    asked.round()
    asked.round(1.0)
    assert asked.values()["mig/0/memory"] == 10.0
    assert asked.reasons()["mig/0/sm_active"] == str(pynvml.NVMLError(gpu.errors["nvmlGpmMigSampleGet"]))


def watched(
    patch: pytest.MonkeyPatch, gpus: list[FakeGpu], events: list[tuple[int, int]]
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """What is told of these events, and the GPUs whose events are not."""
    patch.setattr(nvml_module, "WAIT_MS", 20)
    told: list[dict[str, Any]] = []
    with nvml(gpus) as machine:
        watch = nvml_module.XidThread(open_devices(), told.append)
        watch.start()
        for event in events:
            machine.events.put(event)
        wait_for(lambda: len(told) >= len(events) or not watch.thread.is_alive(), 5)
        watch.stop()
        if watch.thread.ident is not None:
            watch.thread.join(5)
            assert not watch.thread.is_alive()
    return told, watch.reasons


def test_xid_events_are_told_with_their_gpu_and_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    told, reasons = watched(monkeypatch, [FakeGpu(), FakeGpu()], [(1, 79), (0, 31), (0, 4711)])
    assert reasons == {}
    xids = {"level": "warning", "kind": "xid"}
    assert told == [
        {**xids, "gpu": 1, "code": 79, "message": "GPU 1: Xid 79 (GPU has fallen off the bus)"},
        {**xids, "gpu": 0, "code": 31, "message": "GPU 0: Xid 31 (GPU memory page fault)"},
        {**xids, "gpu": 0, "code": 4711, "message": "GPU 0: Xid 4711 (see docs.nvidia.com/deploy/xid-errors)"},
    ]


def test_a_gpu_that_no_longer_answers_is_named_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FakeGpu(errors={"nvmlDeviceGetIndex": pynvml.NVML_ERROR_GPU_IS_LOST})
    told, _ = watched(monkeypatch, [FakeGpu(), gone], [(1, 79)])
    assert [notice["message"] for notice in told] == ["GPU 1: Xid 79 (GPU has fallen off the bus)"]
    assert nvml_module.xid_message(None, 43) == "a GPU: Xid 43 (GPU stopped processing)"


def test_a_gpu_without_events_says_so_and_the_others_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = FakeGpu(errors={"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NOT_SUPPORTED})
    told, reasons = watched(monkeypatch, [deaf, FakeGpu()], [(1, 48)])
    assert (reasons, [notice["gpu"] for notice in told]) == ({0: "Not Supported"}, [1])
    assert watched(monkeypatch, [deaf], [])[1] == {0: "Not Supported"}
