"""Processes as the operating system knows them: their beginning, their cores, their environment, their priority."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

FORK_SERVER = "km-fork-server"  # name of the process from which workers are forked once DALI runs; 15 bytes at most
_SAME_S = 0.5  # two processes of one number begin further apart than this


def in_forked_children(call: Callable[[], None]) -> Callable[[], None]:
    """Have every process that is forked from this one begin with a call, and return the function, as a decorator does.

    Where nothing forks, on Windows, it is never called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


def start_of(pid: int) -> float | None:
    """Return when process `pid` began, in seconds of a clock that is the same for every caller; None if it has ended.

    A zombie has ended. On Linux the seconds are since boot: psutil adds the boot's wall time, which steps with the
    clock.
    """
    if not sys.platform.startswith("linux"):
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        # The name, in parentheses, may hold anything: the fields follow the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, start: float) -> bool:
    """Return whether the process `pid` that began at `start` (of `start_of`) still runs."""
    now = start_of(pid)
    return now is not None and abs(now - start) < _SAME_S


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def child_environment() -> dict[str, str]:
    """This process's environment, in which a child process finds this very package, installed or not."""
    root = str(Path(__file__).resolve().parents[1])
    installed = {str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if root in installed:
        return dict(os.environ)
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{given}{os.pathsep}{root}" if given else root}


def request_realtime() -> bool:
    """Give the calling thread the lowest real-time priority where the system permits it; returns whether it did.

    Beside busy processes Linux lets a woken process wait until the running one has used its slice: measured on 2 cores
    beside two spinning threads, the interval's p99 at 10 Hz is 102 to 104 ms (a bare timer's as well), with a real-time
    priority 100.1 ms. The thread that samples runs for about one per cent of the time, and Linux' own limit for
    real-time processes (95 %) stands behind it.

    Root may, and a user with CAP_SYS_NICE or an rtprio limit; others keep the usual priority. Threads and processes
    started afterwards do not inherit it.
    """
    if not hasattr(os, "sched_setscheduler"):
        return False  # macOS, Windows
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False  # not permitted: the usual case, and no fault
    return True
