"""How much of its limits the control group of the kernel's process uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil

from .. import procfs
from ..probe import Probe, Rates
from ..procfs import LINUX
from .cgroups import Group, Groups
from .process_limits import PERIOD_S, counters, cpu_quota, memory_limit, no_groups

_CPU = (("container/cpu", "%"), ("container/throttled", "%"))
_MEMORY = (("container/memory", "B"), ("container/memory_percent", "%"))


class Container(Probe):
    """CPU time in per cent of the quota, periods in which it ran out, and memory against its limit; at 1 Hz.

    Measured is the group that sets the tightest limit: the process's own or an outer group. The limits are read again
    every 5 s; the metrics without a limit are absent. The memory is without the file pages that are given back at once
    when space is needed (`inactive_file`): a data set that was read would fill any limit.

    Args:
        pid: the kernel's process.
        root: the folder that holds `/proc` and the mount points of the control groups.
    """

    group = "container"
    period = 1.0

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._groups = Groups(pid, root)
        self._total = psutil.virtual_memory().total
        self._due = 0.0
        self._quota = 0.0  # cores
        self._limit = 0.0  # bytes
        self._cpu: tuple[str, str] | None = None
        self._memory: str | None = None
        self._rates = Rates(3)
        self._look()

    def read(self, now: float, /) -> list[float]:
        if now >= self._due:
            self._due = now + PERIOD_S
            self._look()
        values: list[float] = []
        if self._cpu is not None:
            used, periods, throttled = self._rates.update(now, _cpu_counters(*self._cpu))
            # A group that sleeps has no periods: in none of them did the quota run out.
            values += [100.0 * used / 1e9 / self._quota, 100.0 * throttled / periods if periods else 0.0]
        if self._memory is not None:
            resident = _memory_used(self._memory)
            values += [float(resident), 100.0 * resident / self._limit]
        return values

    def _look(self) -> None:
        """Find the limits and the groups that set them."""
        groups = self._groups.find() if LINUX else {}
        reasons: dict[str, str] = {}
        cpu, memory = self._cpu_folders(groups, reasons), self._memory_folder(groups, reasons)
        if cpu != self._cpu:
            self._rates = Rates(3)
        self._cpu, self._memory = cpu, memory
        self.series = (_CPU if cpu is not None else ()) + (_MEMORY if memory is not None else ())
        if "cpu" not in groups and "memory" not in groups:
            reasons = {"container": no_groups()}
        self.reasons = reasons

    def _cpu_folders(self, groups: Mapping[str, Group], reasons: dict[str, str]) -> tuple[str, str] | None:
        """The folders of the quota and of its group's CPU time; None, and the reason, where there is none."""
        quota = cpu_quota(groups)
        if quota is None:
            reasons |= dict.fromkeys(dict(_CPU), "no CPU quota is set for this process")
            return None
        group = groups["cpu"]
        times = group if group.version == 2 else groups.get("cpuacct")
        if times is None or times.path != group.path or len(times.folders) != len(group.folders):
            why = "the CPU time of the group that has the quota is not counted (cpu and cpuacct differ)"
            reasons |= dict.fromkeys(dict(_CPU), why)
            return None
        self._quota = quota.amount
        return group.folders[quota.level], times.folders[quota.level]

    def _memory_folder(self, groups: Mapping[str, Group], reasons: dict[str, str]) -> str | None:
        """The folder of the group whose memory is limited; None, and the reason, if there is none."""
        limit = memory_limit(groups, self._total)
        if limit is None:
            reasons |= dict.fromkeys(dict(_MEMORY), "no limit of memory is set for this process")
            return None
        self._limit = limit.amount
        return groups["memory"].folders[limit.level]


def _cpu_counters(quota: str, times: str) -> tuple[int, int, int]:
    """CPU time used (ns), periods, and periods in which the quota ran out, of the groups in two folders.

    Raises:
        OSError, KeyError: the group has gone, or does not count these.
    """
    stat = counters(quota, "cpu.stat")
    used = 1000 * stat["usage_usec"] if "usage_usec" in stat else int(procfs.read(f"{times}/cpuacct.usage"))
    return used, stat["nr_periods"], stat["nr_throttled"]


def _memory_used(folder: str) -> int:
    """Bytes charged to the group in `folder` and the groups in it, without inactive file pages."""
    stat = counters(folder, "memory.stat")
    if "total_inactive_file" in stat:  # version 1, whose plain names leave the inner groups out
        return max(0, int(procfs.read(f"{folder}/memory.usage_in_bytes")) - stat["total_inactive_file"])
    return max(0, int(procfs.read(f"{folder}/memory.current")) - stat["inactive_file"])
