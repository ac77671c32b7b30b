"""The monitor's own use of the processor: CPU clocks of its threads and of the sampler process."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TypedDict

import psutil

PREFIX = "kernel-monitor"  # of the names of all our threads


class OwnCost(TypedDict):
    """The monitor's own use of the processor, see `Monitor.cost`."""

    threads: dict[str, float]
    kernel: float
    sampler: float | None


def thread_seconds() -> dict[str, float]:
    """CPU seconds of each live thread of ours, by name."""
    ours = {thread.native_id: thread.name for thread in threading.enumerate() if thread.name.startswith(PREFIX)}
    if sys.platform != "linux":
        used = psutil.Process().threads()
        return {ours[thread.id]: thread.user_time + thread.system_time for thread in used if thread.id in ours}
    found = {}
    for native_id, name in ours.items():
        if native_id is not None:
            with suppress(OSError):
                # Linux's id of a thread's CPU clock (MAKE_THREAD_CPUCLOCK, CPUCLOCK_SCHED). Unlike the result of
                # pthread_getcpuclockid it is safe to use for a thread that has just ended.
                found[name] = time.clock_gettime((~native_id << 3) | 6)
    return found


def _process_seconds(pid: int | None) -> float | None:
    """CPU seconds that a process has used; None if there is no such process."""
    if pid is None:
        return None
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


class Share:
    """CPU use of a process in percent of one core, without its startup."""

    def __init__(self) -> None:
        self._since: tuple[int | None, float, float] = (None, 0.0, 0.0)

    def begin(self, pid: int | None) -> None:
        """Count from now on."""
        self._since = pid, time.monotonic(), _process_seconds(pid) or 0.0

    def now(self) -> float | None:
        """Return the share since `begin`; None if unknown."""
        pid, begun, before = self._since
        used, lived = _process_seconds(pid), time.monotonic() - begun
        return None if used is None or lived <= 0 else 100 * (used - before) / lived
