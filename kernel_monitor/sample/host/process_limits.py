"""Limits of the kernel's process (cores, CPU time, memory), and how much of them is used."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .. import probe
from ..probe import LINUX, PROC, Fact, Probe, Rates

# ---- The control groups of a process, and the folders of their files.

_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Group(NamedTuple):
    """A process's control group in one hierarchy."""

    version: int  # 1 or 2
    path: str  # its path in `/proc/<pid>/cgroup`
    folders: tuple[str, ...]  # its folder and those of the groups around it, from the inside out, as far as visible


class Groups:
    """The control groups of the process `pid`; `root` holds `/proc` and the mount points."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._root = root
        self._process = root / "proc" / str(pid)
        self._text = b""
        self._groups: dict[str, Group] = {}

    def find(self) -> dict[str, Group]:
        """Return the group for each of `_CONTROLLERS` that has one here.

        It is empty where the system has no control groups or does not show them. The mounts are read again when the
        process has moved to another group.
        """
        try:
            text = probe.read(f"{self._process}/cgroup")
            if text != self._text:
                mounts = _mounts(probe.read(f"{self._process}/mountinfo").decode(errors="surrogateescape"))
                self._groups = self._locate(text.decode(errors="surrogateescape"), mounts)
                self._text = text
        except probe.UNREADABLE:
            return {}
        return self._groups

    def _locate(self, text: str, mounts: dict[str, tuple[str, str]]) -> dict[str, Group]:
        places = {}
        for line in text.splitlines():
            _number, controllers, path = line.split(":", 2)
            places.update(dict.fromkeys(controllers.split(","), path))  # version 2 names no controller: ""
        groups = {}
        for controller in _CONTROLLERS:
            # A controller is in one hierarchy at a time: in that of version 2 only if no other has it.
            key = controller if controller in places else ""
            if key in places and key in mounts:
                groups[controller] = Group(1 if key else 2, places[key], self._folders(*mounts[key], places[key]))
        return groups

    def _folders(self, outermost: str, mounted_at: str, path: str) -> tuple[str, ...]:
        point = self._root / mounted_at.lstrip("/")
        inside = Path(path)
        # The path lies outside the mount (in a container that shows its groups under their outer names, or for a
        # process of another namespace): the mount point itself is then the process's group.
        if ".." in inside.parts or not inside.is_relative_to(outermost):
            return (str(point),)
        parts = inside.relative_to(outermost).parts
        folders = [point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
        return tuple(str(folder) for folder in folders if folder.is_dir())


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Return the outermost group and mount point of each hierarchy, by controller; the key of version 2 is ""."""
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
    """Return a path of mountinfo with its octal escapes (white space, backslashes) replaced."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)


PERIOD_S = 5.0  # seconds between two reads of the limits, which may change while the process runs
_CPU = (("container/cpu", "%"), ("container/throttled", "%"))
_MEMORY = (("container/memory", "B"), ("container/memory_percent", "%"))


class _Limit(NamedTuple):
    """The tightest limit of a process's group and the groups around it."""

    amount: float  # cores, or bytes
    level: int  # index in `Group.folders` of the group that sets it


def cpu_quota(groups: Mapping[str, Group]) -> _Limit | None:
    """Return the smallest CPU quota, in cores; None if no quota is set."""
    group = groups.get("cpu")
    if group is None:
        return None
    return _tightest((_quota(group.version, folder), level) for level, folder in enumerate(group.folders))


def memory_limit(groups: Mapping[str, Group], total: int) -> _Limit | None:
    """Return the smallest memory limit, in bytes; None if no limit is below the machine's `total`."""
    group = groups.get("memory")
    if group is None:
        return None
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    limits = [(_number(_text(folder, name)), level) for level, folder in enumerate(group.folders)]
    if group.version == 1 and group.folders:  # this entry includes outer groups that are not mounted
        beyond = _counters(group.folders[0], "memory.stat").get("hierarchical_memory_limit")
        limits.append((beyond, len(group.folders) - 1))
    # Version 1 writes "no limit" as a huge number that depends on the size of a page.
    return _tightest((limit, level) for limit, level in limits if limit is not None and limit < total)


def cores(pid: int, groups: Mapping[str, Group]) -> list[int]:
    """Return the cores that the process may run on.

    Raises:
        OSError: the process has ended.
    """
    if not LINUX:
        process = psutil.Process(pid)
        return sorted(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else list(range(os.cpu_count() or 1))
    if cores_of_root := _cores_of_other_root():
        return sorted(cores_of_root)
    allowed = os.sched_getaffinity(pid)
    group = groups.get("cpuset")
    for folder in group.folders[:1] if group is not None else ():
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            listed = set(probe.parse_list(_text(folder, name)))
            if listed:
                return sorted(allowed & listed or allowed)
    return sorted(allowed)


def _cores_of_other_root() -> set[int]:
    """Return the cores that the procfs of `KERNEL_MONITOR_ROOT` lists; an empty set without such a root."""
    if Path("/proc") == PROC:
        return set()
    # `self` is the sampler, which inherits its kernel's cores.
    for line in (_text(str(PROC / "self"), "status")).splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return set(probe.parse_list(line.partition(":")[2]))
    return set()


def memory_available() -> int:
    """Return the bytes that this process may still take: what the machine has available, within the group's limit."""
    memory = psutil.virtual_memory()
    group = Groups(os.getpid()).find().get("memory") if LINUX else None
    limit = None if group is None else memory_limit({"memory": group}, memory.total)
    if group is None or limit is None:
        return int(memory.available)
    return min(int(memory.available), int(limit.amount) - _memory_used(group.folders[limit.level]))


class SharedMemory(NamedTuple):
    """Bytes of /dev/shm."""

    total: int
    used: int
    free: int


def shared_memory() -> SharedMemory | None:
    """Return the memory in which processes share tensors; None where there is no /dev/shm."""
    try:
        return SharedMemory(*shutil.disk_usage("/dev/shm"))  # noqa: S108 - as torch has it
    except OSError:
        return None


class Limits(Fact):
    """The fact `limits` of the hello: `cpus`, `cpu_quota` (cores or null), `memory` (bytes or null), `source`."""

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
    """A probe of CPU time against its quota, periods in which the quota ran out, and memory against its limit; at 1 Hz.

    It measures the group that sets the tightest limit: the process's own or an outer group. The limits are read again
    every 5 s; without a limit its metrics are absent. File pages that the kernel frees at once when it needs space
    (`inactive_file`) do not count as memory: a data set that was read would fill any limit.
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
        self._find_limits()

    def read(self, now: float, /) -> list[float]:
        if now >= self._due:
            self._due = now + PERIOD_S
            self._find_limits()
        values: list[float] = []
        if self._cpu is not None:
            used, periods, throttled = self._rates.update(now, _cpu_counters(*self._cpu))
            # A group that slept has no periods, so the quota ran out in none.
            values += [100.0 * used / 1e9 / self._quota, 100.0 * throttled / periods if periods else 0.0]
        if self._memory is not None:
            resident = _memory_used(self._memory)
            values += [float(resident), 100.0 * resident / self._limit]
        return values

    def _find_limits(self) -> None:
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
    """Return the reason why no control group is visible."""
    return "no control group of this process can be seen here" if LINUX else "only Linux has control groups"


def _counters(folder: str, name: str) -> dict[str, int]:
    """Return the content of a file of lines `name number`; empty if it cannot be read."""
    pairs = (line.split() for line in _text(folder, name).splitlines())
    return {key: int(number) for key, number in pairs}


def _tightest(limits: Iterable[tuple[float | None, int]]) -> _Limit | None:
    return min((_Limit(amount, level) for amount, level in limits if amount is not None), default=None)


def _quota(version: int, folder: str) -> float | None:
    if version == 1:
        quota, period = _number(_text(folder, "cpu.cfs_quota_us")), _number(_text(folder, "cpu.cfs_period_us"))
    else:
        quota, period = map(_number, _text(folder, "cpu.max").partition(" ")[::2])
    return None if quota is None or not period or quota < 0 else quota / period  # -1 and "max" mean no quota


def _text(folder: str, name: str) -> str:
    """Return the file's text; empty if it is missing (as in the outermost group of version 2) or may not be read."""
    try:
        return probe.read(f"{folder}/{name}").decode().strip()
    except probe.UNREADABLE:
        return ""


def _number(text: str) -> int | None:
    """Return the number in a text; None for a word (`max`) and for an empty text."""
    return int(text) if text.lstrip("-").isdecimal() else None


def _cpu_counters(quota: str, times: str) -> tuple[int, int, int]:
    """Return the used CPU time (ns) of the group at `times`; the periods and throttled periods of that at `quota`."""
    stat = _counters(quota, "cpu.stat")
    used = 1000 * stat["usage_usec"] if "usage_usec" in stat else int(probe.read(f"{times}/cpuacct.usage"))
    return used, stat["nr_periods"], stat["nr_throttled"]


def _memory_used(folder: str) -> int:
    """Return the bytes charged to the group in `folder` and to its inner groups, without inactive file pages."""
    stat = _counters(folder, "memory.stat")
    if "total_inactive_file" in stat:  # version 1, where names without `total_` leave out the inner groups
        return max(0, int(probe.read(f"{folder}/memory.usage_in_bytes")) - stat["total_inactive_file"])
    return max(0, int(probe.read(f"{folder}/memory.current")) - stat["inactive_file"])
