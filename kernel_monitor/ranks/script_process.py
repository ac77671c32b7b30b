"""The half of `kernel-monitor run` that runs in the processes of its command; it measures those that import torch.

A process that finds a session to join becomes a rank of it. Otherwise the first process that imports torch starts a
session of its own, which is recorded, and which its child processes join. Workers of loaders are not measured.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import context, process, util
from typing import Any

from ..os_process import child_environment
from ..text import cause, log_failed

RUN, REPORT = "KERNEL_MONITOR_RUN", "KERNEL_MONITOR_REPORT"
"""Environment variables: processes are to record themselves, its value is the id of the script's own; the file for the
report of the recording, or an empty text."""


def begin() -> None:
    """Measure the DataLoaders of this process, which has just imported torch. Called once, by `sitecustomize`."""
    if not any(word.startswith("from multiprocessing") for word in sys.orig_argv):
        _measure()
    elif getattr(process.current_process(), "_inheriting", False):  # multiprocessing has not sent it its function yet
        _call_before_target(_begin_child)
    else:
        _begin_child()


def _call_before_target(call: Callable[[], object]) -> None:
    """Schedule a call in a process that multiprocessing is starting: as soon as it has its `Process` object."""
    util.register_after_fork(call, lambda call: call())  # for processes of the fork server
    spawned: Any = getattr(context, "SpawnProcess", None)
    before = vars(spawned).get("_after_fork") if spawned is not None else None  # an empty function of multiprocessing's
    if before is not None:

        def after_start() -> None:
            spawned._after_fork = before
            call()

        spawned._after_fork = staticmethod(after_start)


def _begin_child() -> None:
    """Measure a process that multiprocessing has started, if it may be a rank; a loader's workers are daemons."""
    from .session_files import VARIABLE

    if VARIABLE in os.environ and not process.current_process().daemon:
        _measure()


def _measure() -> None:
    """Measure the loaders of this process in the session that it joins, or else in one of its own."""
    from .session_files import VARIABLE

    if VARIABLE in os.environ:
        from ..steps import attached
        from ..steps.attached_loader import import_loaders

        importlib.import_module("torch.utils.data")
        attached.attach(import_loaders)
    elif RUN in os.environ:
        try:
            importlib.import_module("torch.utils.data")
            path, message = recorded()
        except Exception as error:  # noqa: BLE001 - such as a package that is missing; the script goes on
            log_failed(logging.getLogger(__name__), "this process is not measured")
            path, message = None, f"nothing was measured: {cause(error)}"
        atexit.register(_end, os.getpid(), path, message)


def recorded() -> tuple[str | None, str]:
    """Start a session of this process; return the path of its recording, or None, and a message for people."""
    from ..runtime import monitor

    monitor.start()
    return monitor.recording["path"], monitor.recording["message"]


def _end(process_id: int, path: str | None, message: str) -> None:
    """End the session, name its recording on stderr, and have its report written if there is to be one."""
    if os.getpid() != process_id:  # a forked child
        return
    from ..runtime import monitor

    monitor.stop("the process ended")
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        sys.stderr.write((f"recorded: {path}\n" if path else "") + (f"kernel-monitor: {message}\n" if message else ""))
    report = os.environ.get(REPORT)
    if report and path:
        command = [sys.executable, "-P", "-m", "kernel_monitor", "report", path, "-o", report]
        subprocess.run(command, stdout=2, env=child_environment(), check=False)  # stdout is the script's
