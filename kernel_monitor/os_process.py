"""Operating system processes: their start, cores, environment, pipes and priority, on Linux, macOS and Windows."""

from __future__ import annotations

import os
import site
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

FORK_SERVER = "km-fork-server"  # name of the process from which workers are forked once DALI runs; 15 bytes at most
_F_SETPIPE_SZ = 1031  # <linux/fcntl.h>
_PARENT_CHECK_S = 0.5  # between two looks whether the parent still runs
_SAME_S = 0.5  # two processes with the same pid start further apart than this


def in_forked_children(call: Callable[[], None]) -> Callable[[], None]:
    """Have every process that is forked from this one begin with a call, and return the function, as a decorator does.

    Where nothing forks, on Windows, it is never called.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
    return call


def start_of(pid: int) -> float | None:
    """Return the start of process `pid`, in seconds of a clock common to all callers; None if it has ended.

    A zombie has ended. On Linux the seconds count from the boot: psutil would add the boot's wall time, which changes
    with the system clock.
    """
    if not sys.platform.startswith("linux"):
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
    try:
        # The name, in parentheses, may contain any characters: the fields follow the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, start: float) -> bool:
    """Return whether the process `pid` that began at `start` (see `start_of`) still runs."""
    now = start_of(pid)
    return now is not None and abs(now - start) < _SAME_S


def end_with(parent: int) -> None:
    """End this process soon after the end of its parent, whatever that ended by: nobody reads its result then."""

    def watch() -> None:
        # A Windows process keeps the number of its parent, which may be a launcher that stands between.
        while psutil.pid_exists(parent) if os.name == "nt" else os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="kernel-monitor-parent", daemon=True).start()


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def child_environment() -> dict[str, str]:
    """Return this process's environment, completed so that a child process imports this same package."""
    root = str(Path(__file__).resolve().parents[1])
    places = (*site.getsitepackages(), site.getusersitepackages())  # the last one begins with ~ where there is no home
    installed = {str(Path(folder).resolve()) for folder in places if Path(folder).is_absolute()}
    if root in installed:
        return dict(os.environ)
    paths = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{paths}{os.pathsep}{root}" if paths else root}


def child_creation_flags() -> int:
    """Return the flags for `Popen` with which an interrupt of this process does not reach a child on Windows."""
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0  # elsewhere a session or a process group of its own does it


def widen_pipe(fd: int, size: int) -> None:
    """Let a pipe hold `size` bytes where that can be set: on Linux, as far as this user's pipes together may."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, size)


def writes_to_pipe(fd: int) -> bool:
    """Return whether a descriptor is the writing end of a pipe. POSIX only.

    Raises:
        OSError: it is closed.
    """
    import fcntl  # not on Windows, where nothing asks

    return stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def request_realtime() -> bool:
    """Give the calling thread the lowest real-time priority if the system permits it; return whether it did.

    On busy cores Linux lets a woken thread wait until the running thread has used its time slice. Measured on 2 cores
    with two spinning threads, the p99 of the interval at 10 Hz is 102 to 104 ms (as with a bare timer), and 100.1 ms
    with real-time priority. The sampling thread runs for about one per cent of the time, and Linux limits real-time
    threads to 95 %.

    The system permits it to root and to users with CAP_SYS_NICE or an rtprio limit. Threads and processes that are
    started later do not inherit it.
    """
    if not hasattr(os, "sched_setscheduler"):
        return False  # macOS, Windows
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False  # not permitted, which is the usual case
    return True
