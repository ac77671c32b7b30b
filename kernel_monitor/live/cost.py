"""What the monitor itself takes of the processor, by the clocks of its threads and of its process."""

from __future__ import annotations

import sys
import threading
import time

import psutil

PREFIX = "kernel-monitor"
"""How the names of all our threads begin."""


def thread_seconds() -> dict[str, float]:
    """CPU seconds of each living thread of ours, by its name."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(PREFIX)]
    if sys.platform != "linux":
        used = {one.id: one.user_time + one.system_time for one in psutil.Process().threads()}
        return {thread.name: used[thread.native_id] for thread in ours if thread.native_id in used}
    found = {}
    for thread in ours:
        if thread.native_id is not None:
            try:
                # The kernel's number for a thread's CPU clock (MAKE_THREAD_CPUCLOCK, CPUCLOCK_SCHED); unlike
                # pthread_getcpuclockid it may be asked for a thread that has just ended.
                found[thread.name] = time.clock_gettime((~thread.native_id << 3) | 6)
            except OSError:
                continue
    return found


def process_seconds(pid: int | None) -> float | None:
    """CPU seconds that a process has used; None if it is not there."""
    if pid is None:
        return None
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(used.user + used.system)


class Share:
    """Per cent of one core that a process uses, its start left out: that is paid once."""

    def __init__(self) -> None:
        self._since: tuple[int | None, float, float] = (None, 0.0, 0.0)

    def begin(self, pid: int | None) -> None:
        """From now on it counts."""
        self._since = pid, time.monotonic(), process_seconds(pid) or 0.0

    def now(self) -> float | None:
        """The share since then; None where it is not known."""
        pid, begun, before = self._since
        used, lived = process_seconds(pid), time.monotonic() - begun
        return None if used is None or lived <= 0 else 100 * (used - before) / lived
