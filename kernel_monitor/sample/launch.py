"""How the sampler process is started: its command, its environment, its separation from the kernel."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import RLock

from kernel_monitor.errors import MonitorError

from .process import start_of

# A fork between the making of the pipes and the closing of the sampler's ends of them would leave these open in the
# forked child, and the end of the sampler would go unseen while it lives. Forks wait for this lock.
forking = RLock()


PIPE_BYTES = 1 << 20
"""As much as Linux gives an unprivileged user's pipe."""


def spawn(
    interval: float,
    zero: float,
    *,
    origin: float | None = None,
    session: str | None = None,
    record: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a sampler with pipes for stdin, stdout and stderr, in a session of its own.

    Args:
        interval: seconds between samples.
        zero: the session's beginning by `time.monotonic()`, earlier by what the machine has slept since.
        origin: Unix time of that moment.
        session: the session's name.
        record: the file to record to; None for no recording.

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
        f"--zero={zero!r}",
        f"--parent={os.getpid()}",
        f"--parent-start={start_of(os.getpid())!r}",
        *([] if origin is None else [f"--origin={origin!r}"]),
        *([] if session is None else [f"--session={session}"]),
        *([] if record is None else [f"--record={record}"]),
    ]
    with forking:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # signals to the kernel's group, an interrupt above all, are not for the sampler
            creationflags=_creation_flags(),
        )
    if process.stdout is not None:
        _widen(process.stdout.fileno())
    return process


def _widen(pipe: int) -> None:
    """Give the pipe room for ten seconds of a large host's frames, where Linux lets this user.

    Of 256 cores and 8 GPUs one frame has 7 kB and the hello 70 kB; a kernel whose reader waits long for the GIL would
    otherwise lose frames.
    """
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # all of this user's pipes together have a limit
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _environment() -> dict[str, str]:
    """The kernel's environment, in which the new process finds this very package."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    installed = {str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if root not in installed:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{before}{os.pathsep}{root}" if before else root
    return environment


def _creation_flags() -> int:
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0
