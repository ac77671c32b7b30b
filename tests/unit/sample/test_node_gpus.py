"""The GPUs of another machine, read through NVML beside its cores; and which of this machine's a rank works on."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import pytest

from kernel_monitor.ranks.identity import device_uuid
from kernel_monitor.sample.gpu.nvml import index_of
from kernel_monitor.sample.node_sampler import NodeGpus
from tests.unit.checks import wait_for
from tests.unit.nvml_standin import GIB, FakeGpu, nvml, pynvml


def read(gpus: NodeGpus, wanted: str) -> dict[str, float]:
    """Its readings once they have this one."""
    wait_for(lambda: wanted in gpus.read(), 5)
    return gpus.read()


def test_utilisation_clock_and_memory_of_each_gpu() -> None:
    machine = [FakeGpu(uuid="GPU-AA-0"), FakeGpu(name="NVIDIA L4", uuid="GPU-bb-1", clock_sm=1200, used=2 * GIB)]
    with nvml(machine):
        gpus = NodeGpus(0.05)
        found = read(gpus, "gpu/1/clock")
        gpus.stop()
    assert (gpus.names, gpus.uuids) == (("NVIDIA H200", "NVIDIA L4"), ("aa-0", "bb-1"))
    assert found.keys() == {f"gpu/{k}/{part}" for k in (0, 1) for part in ("utilisation", "clock", "memory_used")}
    assert (found["gpu/0/clock"], found["gpu/1/clock"], found["gpu/1/memory_used"]) == (1980, 1200, 2 * GIB)
    assert found["gpu/0/utilisation"] == pytest.approx(37, abs=5)


def test_what_nvml_refuses_is_left_out_and_without_nvml_there_is_nothing() -> None:
    refused = FakeGpu(errors={"nvmlDeviceGetClockInfo": pynvml.NVML_ERROR_NOT_SUPPORTED})
    with nvml([refused]):
        gpus = NodeGpus(0.05)
        found = read(gpus, "gpu/0/memory_used")
        gpus.stop()
    assert found.keys() == {"gpu/0/utilisation", "gpu/0/memory_used"}
    with nvml([], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
        none = NodeGpus()
    assert (none.names, none.read()) == ((), {})
    with pytest.raises(TypeError):
        pickle.dumps(none)


def test_a_gpu_is_found_by_its_uuid() -> None:
    with nvml([FakeGpu(uuid="GPU-AA-0"), FakeGpu(uuid="GPU-BB-1")]) as machine:
        assert (index_of("bb-1"), index_of("cc-2")) == (1, None)
        assert not machine.running  # closed again
    with nvml([], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
        assert index_of("aa-0") is None


def cuda(allocated: list[int], *, initialized: bool = True) -> SimpleNamespace:
    """torch, as far as it is asked, with so many bytes allocated on each GPU."""

    def properties(k: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"AA-{k}")

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialized,
            device_count=lambda: len(allocated),
            memory_allocated=lambda k: allocated[k],
            get_device_properties=properties,
        )
    )


def test_a_rank_works_on_the_gpu_on_which_it_has_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch, uuid in (
        (cuda([0, 9, 3]), "aa-1"),
        (cuda([0, 0]), ""),
        (cuda([5], initialized=False), ""),
        (SimpleNamespace(), ""),
    ):
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert device_uuid() == uuid
    monkeypatch.delitem(sys.modules, "torch")
    assert device_uuid() == ""
    assert "torch" not in sys.modules
