"""MIG instances of a GPU: their memory and their multiprocessors' activity."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .gauges import Gauge, memory_of
from .gpm import SM_ACTIVE, Gpm
from .nvml import RETRY_S, Device, Query, name_and_memory
from .query_thread import Change, QueryTable


@dataclass(frozen=True)
class Instance:
    """One MIG instance."""

    index: int  # NVML's index of it on its GPU
    name: str  # of its profile
    memory_total: int | None  # bytes, or None where NVML does not give it
    gpu_instance: int | None  # number of the GPU instance that it is (a part of)
    handle: Any = field(compare=False)


class MigTable(QueryTable):
    """Queries each MIG instance of a GPU; lists the instances again every `RETRY_S`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, [])
        self.instances: tuple[Instance, ...] = ()
        self._list_due = 0.0
        self._list()

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        changes: list[Change] = []
        if now >= self._list_due:
            self._list_due = now + RETRY_S
            changes = self._list()
        return changes + super().ask(now, tolerance)

    def _list(self) -> list[Change]:
        """List the instances; returns what changed."""
        device = self.device
        nvml: Any = device.nvml
        found: list[Instance] = []
        try:
            device.mig = device.handle is not None and bool(nvml.nvmlDeviceGetMigMode(device.handle)[0])
            if device.mig:
                for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
                    try:
                        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
                    except nvml.NVMLError_NotFound:
                        continue
                    found.append(_instance(nvml, index, handle))
        except nvml.NVMLError as error:
            device.refused(error)
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED and self.instances:
                return []  # not now: the instances keep their rows
        if tuple(found) == self.instances:
            return []
        self.instances = tuple(found)
        queries: list[Query] = []
        for instance in found:
            parts = ((f"mig/{instance.index}/memory", "%"), (f"mig/{instance.index}/memory_used", "B"))
            queries.append(Gauge(device, "mig", parts, partial(memory_of, instance.handle)))
            if instance.gpu_instance is not None:
                queries.append(Gpm(device, SM_ACTIVE, f"mig/{instance.index}/", instance.gpu_instance))
        self.lay_out(queries)
        return [Change(device.index, "MIG", f"{len(found)} instance(s)")]


def _instance(nvml: Any, index: int, handle: Any) -> Instance:
    name, total = name_and_memory(nvml, handle, f"MIG instance {index}")
    try:
        part = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
    except nvml.NVMLError:
        part = None
    return Instance(index, name, total, part, handle)
