"""How loaded the host is: its memory and swapping, the load averages, and the time that tasks were stalled (PSI)."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

import psutil

from .. import procfs
from ..probe import SLOW_PERIOD_S, Probe, Rates
from ..procfs import LINUX, PROC

_SIZES = re.compile(rb"^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s+(\d+) kB$", re.MULTILINE)
_SWAPPED = re.compile(rb"^pswp(?:in|out) (\d+)$", re.MULTILINE)
_HELD = (("memory/used", "B"), ("memory/percent", "%"), ("memory/available", "B"), ("swap/used", "B"))
_MOVED = (("swap/in", "B/s"), ("swap/out", "B/s"))
_AVERAGES = (("host/load1", "1"), ("host/load5", "1"), ("host/load15", "1"))
_RUNNABLE = ("host/processes", "1")
_TOTALS = re.compile(rb"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
_PARTS = {"cpu": (b"some",), "memory": (b"some", b"full"), "io": (b"some", b"full")}
"""The resources, and whose stalls count: some task's, or all tasks' at once."""


class Memory(Probe):
    """Memory in use (what is not available for new work without swapping), swap in use, and bytes swapped a second."""

    group = "memory"
    period = SLOW_PERIOD_S

    def __init__(self, proc: Path = PROC) -> None:
        self._meminfo, self._vmstat = f"{proc}/meminfo", f"{proc}/vmstat"
        self._rates = Rates()
        self.series = _HELD + _MOVED
        missing = "Windows does not count swapped pages" if sys.platform == "win32" else ""
        if LINUX:
            missing = procfs.why_not(self._vmstat)
            if not missing and len(_SWAPPED.findall(procfs.read(self._vmstat))) != 2:
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
        """Total and available memory and used swap, in bytes."""
        if not LINUX:
            memory = psutil.virtual_memory()
            return memory.total, memory.available, psutil.swap_memory().used
        sizes = {name: 1024 * int(kibibytes) for name, kibibytes in _SIZES.findall(procfs.read(self._meminfo))}
        swap = sizes.get(b"SwapTotal", 0) - sizes.get(b"SwapFree", 0)
        return sizes[b"MemTotal"], sizes[b"MemAvailable"], swap

    def _swapped(self) -> tuple[int, int]:
        """Bytes read from and written to swap since boot."""
        if not LINUX:
            swap = psutil.swap_memory()
            return swap.sin, swap.sout
        pages_in, pages_out = map(int, _SWAPPED.findall(procfs.read(self._vmstat)))
        page = os.sysconf("SC_PAGE_SIZE")
        return pages_in * page, pages_out * page


class Load(Probe):
    """The load averages of 1, 5 and 15 minutes, and the tasks (threads, as Linux counts them) that run or could run."""

    group = "load"
    period = 1.0

    def __init__(self, proc: Path = PROC) -> None:
        self._file = f"{proc}/loadavg"
        self.series = (*_AVERAGES, _RUNNABLE)
        if sys.platform == "win32":
            self.series, self.reasons = (), {"load": "Windows has no load average"}
        elif LINUX and (unreadable := procfs.why_not(self._file)):
            self.series, self.reasons = (), {"load": unreadable}
        elif not LINUX:
            self.series, self.reasons = _AVERAGES, {"host/processes": "only Linux counts the tasks that could run"}

    def read(self, _now: float, /) -> list[float]:
        if not self.series:
            return []
        if not LINUX:
            return list(os.getloadavg())
        *averages, tasks, _last = procfs.read(self._file).split()
        return [*map(float, averages), float(tasks.partition(b"/")[0])]


class Pressure(Probe):
    """Pressure stall information: shares of the window, in per cent, in which tasks were stalled.

    https://docs.kernel.org/accounting/psi.html; a share is the growth of `total` (µs) over the window, not the
    kernel's own averages over 10 s and more.
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
            if reason := self._why_not(resource):
                reasons |= dict.fromkeys(names, reason)
            else:
                self._resources.append(resource)
                series += [(name, "%") for name in names]
        self.series = tuple(series)
        # Without any file, one sentence for the whole group.
        self.reasons = reasons if series else {"pressure": next(iter(reasons.values()))}
        self._rates = Rates()

    def read(self, now: float, /) -> list[float]:
        totals = [total for resource in self._resources for total in self._totals(resource)]
        # A comparison with NaN is false: what is missing stays so.
        return [100.0 if rate > 1e6 else rate / 1e4 for rate in self._rates.update(now, totals)]

    def _totals(self, resource: str) -> list[int]:
        """Stalled time since boot in µs, per part of the resource. Raises OSError, or KeyError for a missing line."""
        lines = dict(_TOTALS.findall(procfs.read(f"{self._folder}/{resource}")))
        return [int(lines[part]) for part in _PARTS[resource]]

    def _why_not(self, resource: str) -> str:
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
