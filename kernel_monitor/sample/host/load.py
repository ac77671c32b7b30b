"""How much work waits for the host's cores: Linux' load averages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..system import LINUX, PROC
from . import procfs

_AVERAGES = (("host/load1", "1"), ("host/load5", "1"), ("host/load15", "1"))
_RUNNABLE = ("host/processes", "1")


class Load:
    """The load averages of 1, 5 and 15 minutes, and the tasks (threads, as Linux counts them) that run or could run."""

    group = "load"
    period = 1.0

    def __init__(self, proc: Path = PROC) -> None:
        self._file = f"{proc}/loadavg"
        self.series: tuple[tuple[str, str], ...] = (*_AVERAGES, _RUNNABLE)
        self.reasons: dict[str, str] = {}
        if sys.platform == "win32":
            self.series, self.reasons = (), {"load": "Windows has no load average"}
        elif LINUX and (unreadable := procfs.why_not(self._file)):
            self.series, self.reasons = (), {"load": unreadable}
        elif not LINUX:
            self.series, self.reasons = _AVERAGES, {"host/processes": "only Linux tells how many tasks could run"}

    def read(self, _now: float, /) -> list[float]:
        if not self.series:
            return []
        if not LINUX:
            return list(os.getloadavg())
        *averages, tasks, _last = procfs.read(self._file).split()
        return [*map(float, averages), float(tasks.partition(b"/")[0])]
