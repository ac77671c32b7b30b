"""Python imports this before anything else where its folder is on PYTHONPATH: what another system lacks is missing.

`SUBSTITUTED=darwin` or `win32` says which system; unset, nothing happens. Every child process gets the same, as it
inherits both variables. What belongs to Python and psutil stays as it is on Linux and is imported first, so that only
this package meets the other system: its modules see `sys.platform`, lack the modules and functions, and cannot read
`/proc` or `/sys`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

SYSTEM = os.environ.get("SUBSTITUTED", "")
PACKAGE = f"{os.sep}kernel_monitor{os.sep}"
LINUX_ONLY = {
    "os": (
        "memfd_create", "pidfd_open", "sched_getaffinity", "sched_get_priority_max", "sched_param", "sched_setaffinity",
        "sched_setscheduler", "splice", "SCHED_FIFO", "SCHED_RESET_ON_FORK", "eventfd",
    ),
    "signal": ("SIGRTMIN", "SIGPOLL"),
    "socket": ("AF_NETLINK",),
}  # fmt: skip
POSIX_ONLY = {
    "os": (
        "chown", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getuid", "killpg", "mkfifo",
        "nice", "register_at_fork", "set_blocking", "setpgid", "setsid", "statvfs", "uname",
    ),
    "signal": ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
    "socket": ("AF_UNIX",),
}  # fmt: skip
POSIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
WINDOWS_ONLY = {"CREATE_NEW_PROCESS_GROUP": 0, "CREATE_NO_WINDOW": 0}  # Linux' Popen takes no other flag than 0


def asked_by_the_package() -> bool:
    """Whether the innermost caller that is no module of Python is one of `kernel_monitor`'s."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if PACKAGE in name:
            return True
        if "site-packages" in name:
            return False
        frame = frame.f_back
    return False


def is_hidden(path: object) -> bool:
    """Whether the package asks for a file of Linux."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return text.startswith(("/proc", "/sys/")) and asked_by_the_package()


def without_hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `os` that finds no hidden file; these raise no audit event."""

    def found(path: Any, *arguments: Any, **named: Any) -> Any:
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **named)

    return found


def without_sysconf(function: Callable[[Any], int]) -> Callable[[Any], int]:
    """`os.sysconf` for psutil's half for Linux alone."""

    def found(name: Any) -> int:
        if asked_by_the_package():
            raise AttributeError("module 'os' has no attribute 'sysconf'")
        return function(name)

    return found


def hide(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse the files of Linux: a hook for `sys.addaudithook`."""
    if event in ("open", "os.listdir", "os.scandir") and is_hidden(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def substitute(system: str) -> None:
    """Take away what `system` lacks."""
    import asyncio  # noqa: F401
    import multiprocessing.context
    import multiprocessing.popen_forkserver
    import multiprocessing.popen_spawn_posix
    import multiprocessing.resource_sharer
    import multiprocessing.util
    import platform
    import shutil
    import signal
    import socket
    import subprocess
    import tempfile  # noqa: F401

    import psutil  # noqa: F401

    if "-c" in sys.orig_argv and "resource_tracker" not in " ".join(sys.orig_argv):
        # In the notebook's process and its workers, which load Linux' libraries; the sampler imports none of it.
        import torchvision  # noqa: F401

    context = multiprocessing.context
    context._default_context._actual_context = None  # type: ignore[attr-defined]
    context._default_context._default_context = context._concrete_contexts["spawn"]  # type: ignore[attr-defined]
    context.DefaultContext.get_all_start_methods = lambda self: ["spawn"]  # type: ignore[method-assign]
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    named = {"os": os, "signal": signal, "socket": socket}
    for absent in (LINUX_ONLY, POSIX_ONLY) if system == "win32" else (LINUX_ONLY,):
        for module, names in absent.items():
            for name in names:
                if hasattr(named[module], name):
                    delattr(named[module], name)
    if system == "win32":
        for name in POSIX_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]
        shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
        os.sysconf = without_sysconf(os.sysconf)
        for name, value in WINDOWS_ONLY.items():
            setattr(subprocess, name, value)
    platform.system = lambda: {"darwin": "Darwin", "win32": "Windows"}[system]
    os.stat, os.lstat, os.readlink = (without_hidden(one) for one in (os.stat, os.lstat, os.readlink))
    sys.addaudithook(hide)
    sys.platform = system


if SYSTEM:
    substitute(SYSTEM)
