"""Pressure stall information: how long tasks stood still because a resource was short.

https://docs.kernel.org/accounting/psi.html; the share of a window is the growth of `total` (µs) over it, not the
kernel's own averages over 10 s and more.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from ..probe import Rates
from ..system import LINUX, PROC
from . import procfs

_TOTALS = re.compile(rb"^(some|full) .*\btotal=(\d+)$", re.MULTILINE)
_PARTS = {"cpu": (b"some",), "memory": (b"some", b"full"), "io": (b"some", b"full")}
"""The resources, and whose stalls count: some task's, or all tasks' at once."""


class Pressure:
    """Shares of the window, in per cent, in which tasks were stalled."""

    group = "pressure"
    period = 1.0

    def __init__(self, proc: Path = PROC) -> None:
        self._folder = f"{proc}/pressure"
        self._resources: list[str] = []
        self.reasons: dict[str, str] = {}
        found: list[tuple[str, str]] = []
        for resource, parts in _PARTS.items():
            names = [f"pressure/{resource}{'' if part == b'some' else '_full'}" for part in parts]
            reason = self._why_not(resource)
            if reason:
                self.reasons.update(dict.fromkeys(names, reason))
            else:
                self._resources.append(resource)
                found += [(name, "%") for name in names]
        self.series = tuple(found)
        if not found:  # one sentence for the whole group
            self.reasons = {"pressure": next(iter(self.reasons.values()))}
        self._rates = Rates(len(found))

    def read(self, now: float, /) -> list[float]:
        totals = [total for resource in self._resources for total in self._totals(resource)]
        # A comparison with NaN is false: what is missing stays so.
        return [100.0 if rate > 1e6 else rate / 1e4 for rate in self._rates.update(now, totals)]

    def _totals(self, resource: str) -> list[int]:
        """Stalled time since boot in µs, for each part of the resource.

        Raises:
            OSError: the file cannot be read.
            KeyError: it has no such line.
        """
        lines = dict(_TOTALS.findall(procfs.read(f"{self._folder}/{resource}")))
        return [int(lines[part]) for part in _PARTS[resource]]

    def _why_not(self, resource: str) -> str:
        if not LINUX:
            return "only Linux tells the pressure"
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
