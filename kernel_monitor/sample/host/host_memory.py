"""The host's memory and its swapping."""

from __future__ import annotations

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


class Memory(Probe):
    """Memory in use (what is not available for new work without swapping), swap in use, and bytes swapped a second."""

    group = "memory"
    period = SLOW_PERIOD_S

    def __init__(self, proc: Path = PROC) -> None:
        self._meminfo, self._vmstat = f"{proc}/meminfo", f"{proc}/vmstat"
        self._rates = Rates(2)
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
        total, available, swap_used = self._sizes() if LINUX else _psutil_sizes()
        used = total - available
        values = [float(used), 100.0 * used / total, float(available), float(swap_used)]
        if len(self.series) > len(values):
            values += self._rates.update(now, self._swapped())
        return values

    def _sizes(self) -> tuple[int, int, int]:
        """Total and available memory and used swap, in bytes."""
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


def _psutil_sizes() -> tuple[int, int, int]:
    memory = psutil.virtual_memory()
    return memory.total, memory.available, psutil.swap_memory().used
