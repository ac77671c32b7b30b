"""Memory and utilisation of the kernel's own processes on a GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from .nvml import Answer, Device, Query, call_first

_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own pid namespace (Linux: PROC_PID_INIT_INO)

ELSEWHERE = "NVML names processes of another pid namespace"
NOT_YET = "the kernel's process tree is not known yet"
NOT_GIVEN = "the driver does not give the memory of single processes"
SOON_S = 2.0  # a refused query is repeated this soon: the tree becomes known after the first one
_GRAPHICS_PERIOD_S = 5.0  # how often processes that only draw are listed
HELD_S = 3.0
"""A process's newest sample counts for this long: the driver takes a sample about every second. (The first query gives
all samples in its buffer, some of processes that have been idle since.)"""


@cache
def in_first_namespace() -> bool:
    """Return whether pids here are those that the driver knows; in most containers they are not."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


class ProcessMemory(Query):
    """GPU memory of the kernel's process tree: the larger of a process's compute and graphics memory counts."""

    retry = SOON_S

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("process_memory", "B"),))
        self._graphics: dict[int, int | None] = {}
        self._graphics_due = 0.0

    def ask(self, now: float) -> Sequence[Answer]:
        pids = _tree(self.device)
        if isinstance(pids, str):
            return (pids,)
        if now >= self._graphics_due:
            self._graphics_due = now + _GRAPHICS_PERIOD_S
            try:
                self._graphics = dict(self._listed("nvmlDeviceGetGraphicsRunningProcesses"))
            except self.device.nvml.NVMLError as error:
                self.device.refused(error)
                self._graphics = {}  # a GPU without a display part; computing processes are listed next
        used = dict(self._graphics)
        for pid, size in self._listed("nvmlDeviceGetComputeRunningProcesses"):
            known = used.get(pid)
            used[pid] = size if known is None or size is None else max(size, known)
        own = [size for pid, size in used.items() if pid in pids]
        # Some containers' namespaces look like the machine's own: then no process that NVML names is there.
        self.device.foreign_pids = bool(used) and not own and not any(psutil.pid_exists(pid) for pid in used)
        if self.device.foreign_pids:
            return (ELSEWHERE,)
        if any(size is None for size in own):
            return (NOT_GIVEN,)
        return (float(sum(size for size in own if size is not None)),)

    def _listed(self, function: str) -> Iterator[tuple[int, int | None]]:
        for process in call_first(self.device.nvml, (function, f"{function}_v2"), self.device.handle):
            yield process.pid, process.usedGpuMemory


class ProcessUtilisation(Query):
    """Utilisation of the GPU by the kernel's process tree: the sum of each process's newest sample."""

    retry = SOON_S

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("process_utilisation", "%"),))
        self._seen = 0
        self._newest: dict[int, tuple[float, int]] = {}

    def ask(self, now: float) -> Sequence[Answer]:
        pids = _tree(self.device)
        if isinstance(pids, str) or self.device.foreign_pids:
            return (pids if isinstance(pids, str) else ELSEWHERE,)
        for sample in self._samples():
            self._seen = max(self._seen, sample.timeStamp)
            age = time.time() - sample.timeStamp / 1e6
            # Drivers are known to put numbers far above 100 into samples of processes that have just begun.
            if sample.smUtil <= 100:
                self._newest[sample.pid] = (now - max(0.0, age), sample.smUtil)
        self._newest = {pid: seen for pid, seen in self._newest.items() if now - seen[0] <= HELD_S}
        return (min(100.0, float(sum(busy for pid, (_, busy) in self._newest.items() if pid in pids))),)

    def _samples(self) -> Sequence[Any]:
        nvml = self.device.nvml
        try:
            samples: Sequence[Any] = nvml.nvmlDeviceGetProcessUtilization(self.device.handle, self._seen)
        except nvml.NVMLError as error:
            # Success is an error of pynvml's: there was nothing to list.
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):
                return ()
            raise
        return sorted(samples, key=lambda sample: int(sample.timeStamp))


def _tree(device: Device) -> frozenset[int] | str:
    """The pids of the kernel's tree, or why they are of no use."""
    if not in_first_namespace():
        return ELSEWHERE
    return NOT_YET if device.pids is None else device.pids
