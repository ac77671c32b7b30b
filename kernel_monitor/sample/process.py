"""Whether a process is still the one it was: a number and the moment that the process began."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

_SAME_S = 0.5  # two processes of one number begin further apart than this


def start_of(pid: int) -> float | None:
    """When process `pid` began, in seconds of a clock that is the same for every caller; None if it has ended.

    A process that has ended and was not yet waited for (a zombie) has ended. On Linux the seconds are since boot:
    psutil adds the boot's wall time, which steps with the clock.
    """
    if not sys.platform.startswith("linux"):
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        # The name, in parentheses, may hold anything: what is after the last one counts.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, start: float) -> bool:
    """Whether the process `pid` that began at `start` (of `start_of`) still runs."""
    now = start_of(pid)
    return now is not None and abs(now - start) < _SAME_S
