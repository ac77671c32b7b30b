"""MIG instances: which there are, their memory and their multiprocessors' activity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .desk import Change, Desk
from .gpm import SM_ACTIVE, Gpm
from .load import memory_of
from .nvml import RETRY_S, Answer, Device, Question

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Instance:
    """One MIG instance.

    Attributes:
        index: NVML's index of it on its GPU.
        name: of its profile.
        memory_total: bytes, or None where NVML does not tell.
        gpu_instance: number of the GPU instance that it is (a part of).
    """

    index: int
    name: str
    memory_total: int | None
    gpu_instance: int | None


class MigMemory(Question):
    """Memory of one instance."""

    group = "mig"

    def __init__(self, device: Device, index: int, handle: Any) -> None:
        super().__init__(device, ((f"mig/{index}/memory", "%"), (f"mig/{index}/memory_used", "B")))
        self._handle = handle

    def ask(self, _now: float) -> Sequence[Answer]:
        return memory_of(self.device, self._handle)


class MigGpm(Gpm):
    """Multiprocessors' activity of one instance."""

    group = "mig"


class MigDesk(Desk):
    """Asks each MIG instance of a GPU; looks every `RETRY_S` which there are."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, [])
        self.instances: tuple[Instance, ...] = ()
        self._look_due = 0.0
        self.look()

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        changes: list[Change] = []
        if now >= self._look_due:
            self._look_due = now + RETRY_S
            changes = self.look()
        return changes + super().ask(now, tolerance)

    def look(self) -> list[Change]:
        """See which instances there are; returns what changed."""
        device = self.device
        nvml: Any = device.nvml
        handles: list[Any] = []
        found: list[Instance] = []
        try:
            device.mig = device.handle is not None and bool(nvml.nvmlDeviceGetMigMode(device.handle)[0])
            if device.mig:
                for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
                    try:
                        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
                    except nvml.NVMLError_NotFound:
                        continue
                    handles.append(handle)
                    found.append(_instance(nvml, index, handle))
        except nvml.NVMLError as error:
            device.words(error)
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED and self.instances:
                return []  # not now: the instances keep their rows
        if tuple(found) == self.instances:
            return []
        self.instances = tuple(found)
        questions: list[Question] = []
        for instance, handle in zip(found, handles, strict=True):
            questions.append(MigMemory(device, instance.index, handle))
            if instance.gpu_instance is not None:
                questions.append(MigGpm(device, SM_ACTIVE, f"mig/{instance.index}/", instance.gpu_instance))
        self.lay_out(questions)
        return [Change(device.index, "MIG", f"{len(found)} instance(s)")]


def _instance(nvml: Any, index: int, handle: Any) -> Instance:
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        name = f"MIG instance {index} (no name: {error})"
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None
    try:
        part = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
    except nvml.NVMLError:
        part = None
    return Instance(index, name.decode() if isinstance(name, bytes) else name, total, part)
