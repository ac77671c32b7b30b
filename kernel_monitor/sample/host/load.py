"""How much work waits for the host: Linux' load averages, and the time that tasks were stalled (PSI)."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path

from .. import procfs
from ..probe import Probe, Rates
from ..procfs import LINUX, PROC

_AVERAGES = (("host/load1", "1"), ("host/load5", "1"), ("host/load15", "1"))
_RUNNABLE = ("host/processes", "1")
_TOTALS = re.compile(rb"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
_PARTS = {"cpu": (b"some",), "memory": (b"some", b"full"), "io": (b"some", b"full")}
"""The resources, and whose stalls count: some task's, or all tasks' at once."""


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
        self._rates = Rates(len(series))

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
