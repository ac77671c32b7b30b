"""What the kernel's process may use of the machine (cores, CPU time, memory), and how much of that it uses."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .. import probe
from ..probe import LINUX, PROC, Fact, Probe, Rates

# ---- Which control groups a process is in, and where their files are.

_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Group(NamedTuple):
    """A process's group in one hierarchy."""

    version: int  # 1 or 2
    path: str  # as `/proc/<pid>/cgroup` names it
    folders: tuple[str, ...]  # its own and those of the groups around it, from the inside out, as far as can be seen


class Groups:
    """The groups of the process `pid`; `root` holds `/proc` and the mount points."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._root = root
        self._process = root / "proc" / str(pid)
        self._text = b""
        self._groups: dict[str, Group] = {}

    def find(self) -> dict[str, Group]:
        """The group for each of `_CONTROLLERS` that has one here; the mounts are read again when the process was moved.

        Empty where the system has no control groups or does not show them.
        """
        try:
            text = probe.read(f"{self._process}/cgroup")
            if text != self._text:
                mounts = _mounts(probe.read(f"{self._process}/mountinfo").decode(errors="surrogateescape"))
                self._groups = self._locate(text.decode(errors="surrogateescape"), mounts)
                self._text = text
        except probe.NOT_THERE:
            return {}
        return self._groups

    def _locate(self, text: str, mounts: dict[str, tuple[str, str]]) -> dict[str, Group]:
        places = {}
        for line in text.splitlines():
            _number, controllers, path = line.split(":", 2)
            places.update(dict.fromkeys(controllers.split(","), path))  # version 2 names no controller: ""
        groups = {}
        for controller in _CONTROLLERS:
            # A controller is in one hierarchy at a time: in version 2's only where no other has it.
            key = controller if controller in places else ""
            if key in places and key in mounts:
                groups[controller] = Group(1 if key else 2, places[key], self._folders(*mounts[key], places[key]))
        return groups

    def _folders(self, outermost: str, mounted_at: str, path: str) -> tuple[str, ...]:
        point = self._root / mounted_at.lstrip("/")
        inside = Path(path)
        # A path outside what is mounted (a container that shows its own groups under their outer names, a process of
        # another namespace) leaves what is mounted, which is meant to be ours.
        if ".." in inside.parts or not inside.is_relative_to(outermost):
            return (str(point),)
        parts = inside.relative_to(outermost).parts
        folders = [point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
        return tuple(str(folder) for folder in folders if folder.is_dir())


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """The group of each hierarchy that is mounted first, and where; by controller, version 2 has the key ""."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        # 31 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
        place, _, kind = line.partition(" - ")
        system, _, rest = kind.partition(" ")
        if system not in ("cgroup", "cgroup2"):
            continue
        fields, options = place.split(" "), rest.rpartition(" ")[2]
        mount = (_plain(fields[3]), _plain(fields[4]))
        for controller in options.split(",") if system == "cgroup" else ("",):
            mounts.setdefault(controller, mount)
    return mounts


def _plain(path: str) -> str:
    """A path of mountinfo, in which white space and backslashes are octal."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)


PERIOD_S = 5.0  # how often limits are read: they may change while the process runs
_CPU = (("container/cpu", "%"), ("container/throttled", "%"))
_MEMORY = (("container/memory", "B"), ("container/memory_percent", "%"))


class _Limit(NamedTuple):
    """The tightest limit on the way out from a process's group."""

    amount: float  # cores, or bytes
    level: int  # how many groups further out it is set


def cpu_quota(groups: Mapping[str, Group]) -> _Limit | None:
    """The smallest CPU quota, in cores; None if there is none."""
    group = groups.get("cpu")
    if group is None:
        return None
    return _tightest((_quota(group.version, folder), level) for level, folder in enumerate(group.folders))


def memory_limit(groups: Mapping[str, Group], total: int) -> _Limit | None:
    """The smallest limit of memory, in bytes; None if there is none below the machine's `total`."""
    group = groups.get("memory")
    if group is None:
        return None
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limits = [(_number(_text(folder, name)), level) for level, folder in enumerate(group.folders)]
    if group.version == 1 and group.folders:  # counts outer groups that are not mounted, too
        beyond = _counters(group.folders[0], "memory.stat").get("hierarchical_memory_limit")
        limits.append((beyond, len(group.folders) - 1))
    # Version 1 has no word for "none", but a huge number that depends on the size of a page.
    return _tightest((limit, level) for limit, level in limits if limit is not None and limit < total)


def cores(pid: int, groups: Mapping[str, Group]) -> list[int]:
    """The cores that the process may run on; an OSError if it has gone."""
    if not LINUX:
        process = psutil.Process(pid)
        return sorted(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else list(range(os.cpu_count() or 1))
    if elsewhere := _elsewhere():
        return sorted(elsewhere)
    allowed = os.sched_getaffinity(pid)
    group = groups.get("cpuset")
    for folder in group.folders[:1] if group is not None else ():
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            listed = set(probe.numbers(_text(folder, name)))
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
            return set(probe.numbers(line.partition(":")[2]))
    return set()


class Limits(Fact):
    """`host["limits"]` of the hello: `cpus`, `cpu_quota` (cores or null), `memory` (bytes or null), `source`."""

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
        self.reasons = {} if versions else {"limits": _no_groups()}
        return {
            "cpus": cores(self._pid, groups),
            "cpu_quota": None if quota is None else quota.amount,
            "memory": None if memory is None else int(memory.amount),
            "source": f"cgroup v{min(versions)}" if versions else None,
        }


class Container(Probe):
    """CPU time in per cent of the quota, periods in which it ran out, and memory against its limit; at 1 Hz.

    Measured is the group that sets the tightest limit: the process's own or an outer group. The limits are read again
    every 5 s; the metrics without a limit are absent. The memory is without the file pages that are given back at once
    when space is needed (`inactive_file`): a data set that was read would fill any limit.
    """

    group = "container"
    period = 1.0

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._groups = Groups(pid, root)
        self._total = psutil.virtual_memory().total
        self._due = 0.0
        self._quota = 0.0  # cores
        self._limit = 0.0  # bytes
        self._cpu: tuple[str, str] | None = None  # the folders of the quota and of its group's CPU time
        self._memory: str | None = None
        self._rates = Rates()
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
        """Find the limits, and the folders of the groups that set them."""
        groups = self._groups.find() if LINUX else {}
        quota, limit = cpu_quota(groups), memory_limit(groups, self._total)
        reasons: dict[str, str] = {}
        before, self._cpu, self._memory = self._cpu, None, None
        if quota is None:
            reasons |= dict.fromkeys(dict(_CPU), "no CPU quota is set for this process")
        else:
            group = groups["cpu"]
            times = group if group.version == 2 else groups.get("cpuacct")
            if times is None or times.path != group.path or len(times.folders) != len(group.folders):
                why = "the CPU time of the group that has the quota is not counted (cpu and cpuacct differ)"
                reasons |= dict.fromkeys(dict(_CPU), why)
            else:
                self._quota = quota.amount
                self._cpu = group.folders[quota.level], times.folders[quota.level]
        if limit is None:
            reasons |= dict.fromkeys(dict(_MEMORY), "no limit of memory is set for this process")
        else:
            self._limit = limit.amount
            self._memory = groups["memory"].folders[limit.level]
        if self._cpu != before:
            self._rates = Rates()
        self.series = (_CPU if self._cpu is not None else ()) + (_MEMORY if self._memory is not None else ())
        self.reasons = reasons if groups.keys() & {"cpu", "memory"} else {"container": _no_groups()}


def _no_groups() -> str:
    """Return why there are no control groups to ask."""
    return "no control group of this process can be seen here" if LINUX else "only Linux has control groups"


def _counters(folder: str, name: str) -> dict[str, int]:
    """A file of lines `name number`; empty if it cannot be read."""
    pairs = (line.split() for line in _text(folder, name).splitlines())
    return {key: int(number) for key, number in pairs}


def _tightest(limits: Iterable[tuple[float | None, int]]) -> _Limit | None:
    return min((_Limit(amount, level) for amount, level in limits if amount is not None), default=None)


def _quota(version: int, folder: str) -> float | None:
    if version == 1:
        quota, period = _number(_text(folder, "cpu.cfs_quota_us")), _number(_text(folder, "cpu.cfs_period_us"))
    else:
        quota, period = map(_number, _text(folder, "cpu.max").partition(" ")[::2])
    return None if quota is None or not period or quota < 0 else quota / period  # -1, or "max": none


def _text(folder: str, name: str) -> str:
    """The file's text; empty where it does not exist (the outermost group of version 2 has none) or may not be read."""
    try:
        return probe.read(f"{folder}/{name}").decode().strip()
    except probe.NOT_THERE:
        return ""


def _number(text: str) -> int | None:
    """None for a word (`max`) and for nothing."""
    return int(text) if text.lstrip("-").isdecimal() else None


def _cpu_counters(quota: str, times: str) -> tuple[int, int, int]:
    """CPU time used (ns), periods, and periods in which the quota ran out, of the groups in two folders."""
    stat = _counters(quota, "cpu.stat")
    used = 1000 * stat["usage_usec"] if "usage_usec" in stat else int(probe.read(f"{times}/cpuacct.usage"))
    return used, stat["nr_periods"], stat["nr_throttled"]


def _memory_used(folder: str) -> int:
    """Bytes charged to the group in `folder` and the groups in it, without inactive file pages."""
    stat = _counters(folder, "memory.stat")
    if "total_inactive_file" in stat:  # version 1, whose plain names leave the inner groups out
        return max(0, int(probe.read(f"{folder}/memory.usage_in_bytes")) - stat["total_inactive_file"])
    return max(0, int(probe.read(f"{folder}/memory.current")) - stat["inactive_file"])
