"""What the kernel's process may use of the machine: cores, CPU time, memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .. import procfs
from ..probe import Fact
from ..procfs import LINUX, PROC
from .cgroups import Group, Groups

PERIOD_S = 5.0  # how often limits are read: they may change while the process runs


class Limit(NamedTuple):
    """The tightest limit on the way out from a process's group."""

    amount: float  # cores, or bytes
    level: int  # how many groups further out it is set


def cpu_quota(groups: Mapping[str, Group]) -> Limit | None:
    """The smallest CPU quota, in cores; None if there is none."""
    group = groups.get("cpu")
    if group is None:
        return None
    quota = _quota_v1 if group.version == 1 else _quota_v2
    return _tightest((quota(folder), level) for level, folder in enumerate(group.folders))


def memory_limit(groups: Mapping[str, Group], total: int) -> Limit | None:
    """The smallest limit of memory, in bytes; None if there is none below the machine's `total`."""
    group = groups.get("memory")
    if group is None:
        return None
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limits = [(_number(_text(folder, name)), level) for level, folder in enumerate(group.folders)]
    if group.version == 1 and group.folders:  # counts outer groups that are not mounted, too
        beyond = counters(group.folders[0], "memory.stat").get("hierarchical_memory_limit")
        limits.append((beyond, len(group.folders) - 1))
    # Version 1 has no word for "none", but a huge number that depends on the size of a page.
    return _tightest((limit, level) for limit, level in limits if limit is not None and limit < total)


def cores(pid: int, groups: Mapping[str, Group]) -> list[int]:
    """The cores that the process may run on.

    Raises:
        OSError: the process has gone.
    """
    if not LINUX:
        process = psutil.Process(pid)
        return sorted(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else list(range(os.cpu_count() or 1))
    if elsewhere := _elsewhere():
        return sorted(elsewhere)
    allowed = os.sched_getaffinity(pid)
    group = groups.get("cpuset")
    for folder in group.folders[:1] if group is not None else ():
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            listed = set(procfs.numbers(_text(folder, name)))
            if listed:
                return sorted(allowed & listed or allowed)
    return sorted(allowed)


def _elsewhere() -> set[int]:
    """The cores that another root's procfs lists; none where there is no other root."""
    if Path("/proc") == PROC:
        return set()
    # `self` is the reader: the sampler, which has its kernel's cores.
    for line in (_text(str(PROC / "self"), "status")).splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return set(procfs.numbers(line.partition(":")[2]))
    return set()


class Limits(Fact):
    """`host["limits"]` of the hello: `cpus`, `cpu_quota` (cores or null), `memory` (bytes or null), `source`.

    Args:
        pid: the kernel's process.
        root: the folder that holds `/proc` and the mount points of the control groups.
    """

    key = "limits"
    period = PERIOD_S

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._pid = pid
        self._groups = Groups(pid, root)
        self._total = psutil.virtual_memory().total

    def read(self) -> dict[str, Any]:
        groups = self._groups.find() if LINUX else {}
        quota, memory = cpu_quota(groups), memory_limit(groups, self._total)
        versions = {groups[name].version for name in ("cpu", "memory") if name in groups}
        self.reasons = {} if versions else {"limits": no_groups()}
        return {
            "cpus": cores(self._pid, groups),
            "cpu_quota": None if quota is None else quota.amount,
            "memory": None if memory is None else int(memory.amount),
            "source": f"cgroup v{min(versions)}" if versions else None,
        }


def no_groups() -> str:
    """Why there are no control groups to ask."""
    return "no control group of this process can be seen here" if LINUX else "only Linux has control groups"


def counters(folder: str, name: str) -> dict[str, int]:
    """A file of lines `name number`; empty if it cannot be read."""
    pairs = (line.split() for line in _text(folder, name).splitlines())
    return {key: int(number) for key, number in pairs}


def _tightest(limits: Iterable[tuple[float | None, int]]) -> Limit | None:
    return min((Limit(amount, level) for amount, level in limits if amount is not None), default=None)


def _quota_v1(folder: str) -> float | None:
    quota, period = _number(_text(folder, "cpu.cfs_quota_us")), _number(_text(folder, "cpu.cfs_period_us"))
    return None if quota is None or not period or quota < 0 else quota / period  # -1: none


def _quota_v2(folder: str) -> float | None:
    quota, _, period = _text(folder, "cpu.max").partition(" ")
    return None if quota in ("", "max") else int(quota) / int(period)


def _text(folder: str, name: str) -> str:
    """The file's text; empty where it does not exist (the outermost group of version 2 has none) or may not be read."""
    try:
        return procfs.read(f"{folder}/{name}").decode().strip()
    except procfs.NOT_THERE:
        return ""


def _number(text: str) -> int | None:
    """None for a word (`max`) and for nothing."""
    return int(text) if text.lstrip("-").isdecimal() else None
