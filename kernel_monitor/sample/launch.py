"""How the sampler process is started: its command, its environment, its separation from the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import RLock

from ..errors import MonitorError
from ..os_process import child_environment, start_of
from .clock import SessionClock

forking = RLock()
"""Held while a sampler is started. A child forked between the making of the pipes and the closing of the sampler's ends
would keep these open, and the sampler's end would go unnoticed while the child lives. Forks wait for this lock."""
PIPE_BYTES = 1 << 20  # the most that Linux gives an unprivileged user's pipe


def spawn(interval: float, clock: SessionClock, session: str, record: Path | None) -> subprocess.Popen[bytes]:
    """Start a sampler with pipes for stdin, stdout and stderr, in a session of its own.

    Raises:
        MonitorError: this interpreter does not know its own path.
        OSError: the process cannot be started.
    """
    if not sys.executable:
        raise MonitorError("the sampler cannot be started: sys.executable does not name this Python")
    command = [
        sys.executable,
        "-P",  # the folder of a notebook may hold a psutil.py of its own
        "-m",
        "kernel_monitor.sample",
        f"--interval={interval!r}",
        f"--zero={clock.zero - clock.suspended!r}",
        f"--origin={clock.origin!r}",
        f"--session={session}",
        f"--parent={os.getpid()}",
        f"--parent-start={start_of(os.getpid())!r}",
        *([] if record is None else [f"--record={record}"]),
    ]
    with forking:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # signals to the kernel's group, an interrupt above all, are not for the sampler
            creationflags=_creation_flags(),
        )
    if process.stdout is not None:
        _widen(process.stdout.fileno())
    return process


def _widen(pipe: int) -> None:
    """Give the pipe room for ten seconds of a large host's frames, where Linux lets this user.

    With 256 cores and 8 GPUs a frame has 7 kB and the hello 70 kB; without this room a kernel whose reader waits long
    for the GIL would lose frames.
    """
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # all of this user's pipes together have a limit
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _creation_flags() -> int:
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0
