"""The half of `kernel-monitor run` in the processes of its command: each is measured once it has imported torch.

A process that finds a session to join is a rank of it. Otherwise the first one that imports torch has a session of its
own, which is recorded, and which its children join. Workers of loaders are left alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from multiprocessing import context, process, util
from pathlib import Path
from typing import Any

RECORDINGS = "KERNEL_MONITOR_RUN"
"""The environment variable that names a folder: each process that records leaves a file there with the path."""

log = logging.getLogger(__name__)


def begin() -> None:
    """Measure the DataLoaders of this process, which has just imported torch. Called once, by `sitecustomize`."""
    if not any(word.startswith("from multiprocessing") for word in sys.orig_argv):
        _measure()
    elif getattr(process.current_process(), "_inheriting", False):  # it has not been told yet what it is for
        _before_its_function(_begin_child)
    else:
        _begin_child()


def _before_its_function(call: Callable[[], object]) -> None:
    """Have a process that multiprocessing is starting make a call once it has been told what it is for."""
    util.register_after_fork(call, lambda call: call())  # of the fork server's processes
    spawned: Any = getattr(context, "SpawnProcess", None)
    before = vars(spawned).get("_after_fork") if spawned is not None else None  # does nothing
    if before is not None:

        def after_start() -> None:
            spawned._after_fork = before
            call()

        spawned._after_fork = staticmethod(after_start)


def _begin_child() -> None:
    """Measure a process that Python's multiprocessing has started, if it is a rank and not a loader's worker."""
    from .session_files import VARIABLE

    if VARIABLE in os.environ and not process.current_process().daemon:
        _measure()


def _measure() -> None:
    """Have the loaders of this process measured by the session that it joins, or by one of its own."""
    from ..steps import attached
    from .session_files import VARIABLE

    importlib.import_module("torch.utils.data")
    folder = os.environ.get(RECORDINGS)
    if VARIABLE in os.environ:
        attached.attach(_import_loaders)
    elif folder is not None:
        _record(Path(folder))


def _record(folder: Path) -> None:
    """Begin a session of this process, and leave the path of its recording in the folder."""
    from ..runtime import monitor

    monitor.start()
    path = monitor.recording["path"]
    if path is not None:
        (folder / str(os.getpid())).write_text(path, encoding="utf-8")


def _import_loaders() -> None:
    """Import what a click needs, as a first iteration begins."""
    try:
        importlib.import_module("kernel_monitor.loaders")
    except Exception:  # of a torchvision that does not fit to torch, say; the loop goes on
        log.warning("DataLoaders are measured, but cannot be switched", exc_info=True)
