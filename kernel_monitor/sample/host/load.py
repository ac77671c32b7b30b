"""Probes of the host's load: memory, swapping, load averages, stalls (PSI), disks and network."""

from __future__ import annotations

import errno
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import psutil

from .. import probe
from ..probe import LINUX, NAN, PROC, SLOW_PERIOD_S, SYS, Probe, Rates

# ---- Memory and swapping, the load averages, and the time in which tasks were stalled (PSI).

_SIZES = re.compile(rb"^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s+(\d+) kB$", re.MULTILINE)
_SWAPPED = re.compile(rb"^pswp(?:in|out) (\d+)$", re.MULTILINE)
_HELD = (("memory/used", "B"), ("memory/percent", "%"), ("memory/available", "B"), ("swap/used", "B"))
_MOVED = (("swap/in", "B/s"), ("swap/out", "B/s"))
_AVERAGES = (("host/load1", "1"), ("host/load5", "1"), ("host/load15", "1"))
_RUNNABLE = ("host/processes", "1")
_TOTALS = re.compile(rb"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
_PARTS = {"cpu": (b"some",), "memory": (b"some", b"full"), "io": (b"some", b"full")}
"""The lines of each resource's file: stalls of some task, and stalls of all tasks at once."""


class Memory(Probe):
    """A probe of memory in use (total minus available), swap in use, and bytes swapped per second."""

    group = "memory"
    period = SLOW_PERIOD_S

    def __init__(self, proc: Path = PROC) -> None:
        self._meminfo, self._vmstat = f"{proc}/meminfo", f"{proc}/vmstat"
        self._rates = Rates()
        self.series = _HELD + _MOVED
        missing = "Windows does not count swapped pages" if sys.platform == "win32" else ""
        if LINUX:
            missing = probe.read_failure(self._vmstat)
            if not missing and len(_SWAPPED.findall(probe.read(self._vmstat))) != 2:
                missing = "this kernel does not count swapped pages (/proc/vmstat)"
        if missing:
            self.series = _HELD
            self.reasons = {name: missing for name, _ in _MOVED}

    def read(self, now: float, /) -> list[float]:
        total, available, swap_used = self._sizes()
        used = total - available
        values = [float(used), 100.0 * used / total, float(available), float(swap_used)]
        if len(self.series) > len(values):
            values += self._rates.update(now, self._swapped())
        return values

    def _sizes(self) -> tuple[int, int, int]:
        """Return the total memory, the available memory and the used swap, in bytes."""
        if not LINUX:
            memory = psutil.virtual_memory()
            return memory.total, memory.available, psutil.swap_memory().used
        sizes = {name: 1024 * int(kibibytes) for name, kibibytes in _SIZES.findall(probe.read(self._meminfo))}
        swap = sizes.get(b"SwapTotal", 0) - sizes.get(b"SwapFree", 0)
        return sizes[b"MemTotal"], sizes[b"MemAvailable"], swap

    def _swapped(self) -> tuple[int, int]:
        """Return the bytes read from and written to swap since boot."""
        if not LINUX:
            swap = psutil.swap_memory()
            return swap.sin, swap.sout
        pages_in, pages_out = map(int, _SWAPPED.findall(probe.read(self._vmstat)))
        page = os.sysconf("SC_PAGE_SIZE")
        return pages_in * page, pages_out * page


class Load(Probe):
    """A probe of the load averages of 1, 5 and 15 minutes, and of the tasks (on Linux, threads) that could run."""

    group = "load"
    period = 1.0

    def __init__(self, proc: Path = PROC) -> None:
        self._file = f"{proc}/loadavg"
        self.series = (*_AVERAGES, _RUNNABLE)
        if sys.platform == "win32":
            self.series, self.reasons = (), {"load": "Windows has no load average"}
        elif LINUX and (unreadable := probe.read_failure(self._file)):
            self.series, self.reasons = (), {"load": unreadable}
        elif not LINUX:
            self.series, self.reasons = _AVERAGES, {"host/processes": "only Linux counts the tasks that could run"}

    def read(self, _now: float, /) -> list[float]:
        if not self.series:
            return []
        if not LINUX:
            return list(os.getloadavg())
        *averages, tasks, _last = probe.read(self._file).split()
        return [*map(float, averages), float(tasks.partition(b"/")[0])]


class Pressure(Probe):
    """A probe of pressure stall information: per cent of the window in which tasks were stalled.

    See https://docs.kernel.org/accounting/psi.html. A share is the growth of `total` (µs) over the window, not one of
    the kernel's own averages, which cover 10 s and more.
    """

    group = "pressure"
    period = 1.0

    def __init__(self, proc: Path = PROC) -> None:
        self._folder = f"{proc}/pressure"
        self._resources: list[str] = []
        reasons: dict[str, str] = {}
        series: list[tuple[str, str]] = []
        for resource, parts in _PARTS.items():
            names = [f"pressure/{resource}{'' if part == b'some' else '_full'}" for part in parts]
            if reason := self._read_failure(resource):
                reasons |= dict.fromkeys(names, reason)
            else:
                self._resources.append(resource)
                series += [(name, "%") for name in names]
        self.series = tuple(series)
        # Without any file, one reason for the whole group.
        self.reasons = reasons if series else {"pressure": next(iter(reasons.values()))}
        self._rates = Rates()

    def read(self, now: float, /) -> list[float]:
        totals = [total for resource in self._resources for total in self._totals(resource)]
        # A comparison with NaN is false, so NaN stays NaN.
        return [100.0 if rate > 1e6 else rate / 1e4 for rate in self._rates.update(now, totals)]

    def _totals(self, resource: str) -> list[int]:
        """Return the stalled µs since boot per part of the resource. Raises OSError; KeyError if a line is missing."""
        lines = dict(_TOTALS.findall(probe.read(f"{self._folder}/{resource}")))
        return [int(lines[part]) for part in _PARTS[resource]]

    def _read_failure(self, resource: str) -> str:
        """Return why a resource's stalls cannot be read; empty where they can."""
        if not LINUX:
            return "only Linux measures pressure"
        try:
            self._totals(resource)
        except FileNotFoundError:
            return "this kernel has no /proc/pressure (Linux 4.20 and later, built with PSI)"
        except KeyError as error:
            return f"/proc/pressure/{resource} has no line {error}"
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return "pressure is switched off in this kernel; the boot parameter psi=1 switches it on"
            return f"/proc/pressure/{resource} cannot be read: {error.strerror}"
        return ""


# ---- Bytes per second of the host's disks and network interfaces, and how busy the busiest disk is.

_SECTOR = 512  # bytes; the unit of /proc/diskstats for every disk

Counters = tuple[int, ...]


class _Devices(Probe, ABC):
    """A probe of the sum over all devices of a kind, at 2 Hz.

    The devices with hardware behind them count if any is visible (a partition, a bridge or a RAID device would count
    the same bytes again), else those of `counted`.
    """

    period = SLOW_PERIOD_S
    columns: tuple[tuple[str, str], ...]  # (name, unit) of each value
    none: str  # the reason for missing values where no device counts

    def __init__(self, file: str, folder: Path) -> None:
        self._file = file
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._rates: dict[str, Rates] = {}
        unreadable = probe.read_failure(file) if LINUX else ""
        self._readable = not unreadable
        if unreadable:
            self.reasons = {self.group: unreadable}
        else:
            self._choose(self.counters())

    @abstractmethod
    def counters(self) -> dict[str, Counters]:
        """Return each device's bytes in both directions since it appeared, and its busy time in ms, if counted."""

    @abstractmethod
    def counted(self, names: list[str]) -> list[str]:
        """Return which of these devices count, if none has hardware behind it."""

    def folder_of(self, name: str) -> Path:
        """Return a device's folder in sysfs."""
        # A slash in a device's name (cciss/c0d0) is an exclamation mark in sysfs.
        return self._folder / name.replace("/", "!")

    def read(self, now: float, /) -> list[float]:
        if not self._readable:
            return []
        counters = self.counters()
        if counters.keys() != self._names:
            self._choose(counters)
        if not self._rates:
            return []
        rates = [rate.update(now, counters[name]) for name, rate in self._rates.items()]
        # A device that is new or was reset has no rate yet: the others' are summed.
        received, sent, *busy = ([value for value in column if value == value] for column in zip(*rates, strict=True))
        values = [sum(column) if column else NAN for column in (received, sent)]
        return values + [min(100.0, max(column) / 10.0) if column else NAN for column in busy]

    def _choose(self, counters: Mapping[str, Counters]) -> None:
        """Choose the devices that count; a device that counted before keeps its rate."""
        self._names = frozenset(counters)
        candidates = self.counted(sorted(self._names))
        hardware = [name for name in sorted(self._names) if LINUX and (self.folder_of(name) / "device").exists()]
        self._rates = {name: self._rates.get(name) or Rates() for name in hardware or candidates}
        self.series = self.columns if self._rates else ()
        self.reasons = {} if self._rates else {self.group: self.none}


class Disk(_Devices):
    """A probe of bytes read and written per second, and of the busiest disk's share of time with work (Linux).

    Network file systems do not count.
    """

    group = "disk"
    none = "no disk is visible here"

    def __init__(self, proc: Path = PROC, block: Path = SYS / "block") -> None:
        self.columns = (("disk/read", "B/s"), ("disk/write", "B/s"), *([("disk/busy", "%")] if LINUX else []))
        super().__init__(f"{proc}/diskstats", block)
        if self.series and not LINUX:
            self.reasons = {"disk/busy": "only Linux counts how long a disk had work"}

    def counters(self) -> dict[str, Counters]:
        if not LINUX:
            whole = psutil.disk_io_counters()
            return {} if whole is None else {"all": (whole.read_bytes, whole.write_bytes)}
        disks: dict[str, Counters] = {}
        for line in probe.read(self._file).splitlines():
            # The fields after the name, by Documentation/admin-guide/iostats.rst: reads, merged, sectors, ms, writes,
            # merged, sectors, ms, in flight, ms with work.
            fields = line.split(None, 13)
            disks[fields[2].decode()] = (_SECTOR * int(fields[5]), _SECTOR * int(fields[9]), int(fields[12]))
        return disks

    def counted(self, names: list[str]) -> list[str]:
        if not LINUX:
            return names
        return [
            name for name in names if not name.startswith(("loop", "ram", "zram")) and self.folder_of(name).exists()
        ]


class Network(_Devices):
    """A probe of bytes received and sent per second, without the loopback, which carries the kernel's own messages."""

    group = "network"
    columns = (("network/received", "B/s"), ("network/sent", "B/s"))
    none = "no interface but the loopback is visible here"

    def __init__(self, proc: Path = PROC, net: Path = SYS / "class/net") -> None:
        super().__init__(f"{proc}/net/dev", net)

    def counters(self) -> dict[str, Counters]:
        if not LINUX:
            found = psutil.net_io_counters(pernic=True)
            return {name: (entry.bytes_recv, entry.bytes_sent) for name, entry in found.items()}
        interfaces: dict[str, Counters] = {}
        for line in probe.read(self._file).splitlines()[2:]:
            name, _, rest = line.rpartition(b":")
            fields = rest.split(None, 9)
            interfaces[name.strip().decode(errors="replace")] = (int(fields[0]), int(fields[8]))
        return interfaces

    def counted(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in ("lo", "lo0") and "Loopback" not in name]
