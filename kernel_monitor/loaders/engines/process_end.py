"""Python's end, while threads of a loader still run: a script may end in the middle of a switch or of an epoch.

Daemon threads run on while the functions registered with `atexit` do their work: DALI's, which ends its pipelines, and
ours, which ends the fork server. From then on no pipeline is built or used, and the loaders log nothing: what fails
then fails because Python ends. A daemon thread that Python ends in the middle of C++ code aborts the process: daemon
threads that ask for a batch from then on wait where Python can end them.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...os_process import in_forked_children

PATIENCE_S = 20.0  # how long Python's end waits for a pipeline that is being built or used, which cannot be cut short

_ending = threading.Event()
_until = 0.0  # so long (`time.monotonic`) daemon threads are kept, and pipelines in use are waited for
_uses: set[object] = set()  # pipelines that are being built or asked for a batch


def ending() -> bool:
    """Return whether Python ends: its `atexit` functions run or have run."""
    return _ending.is_set()


def notice() -> None:
    """Be told of Python's end before everything that has asked for that so far; cheap, to be called again.

    `atexit` runs the newest function first: after DALI was imported, ours comes before DALI's own.
    """
    atexit.unregister(_end)
    atexit.register(_end)


@contextmanager
def using() -> Iterator[bool]:
    """While a pipeline is built or asked for a batch: Python's end waits for it. False where Python ends already."""
    use = object()
    _uses.add(use)
    try:
        yield not ending()
    finally:
        _uses.discard(use)


def stay() -> None:
    """Keep a daemon thread here once Python ends; not for ever, as a function of `atexit` may wait for the thread."""
    if ending() and threading.current_thread().daemon:
        time.sleep(max(0.0, _until - time.monotonic()))


def _end() -> None:
    global _until  # noqa: PLW0603
    _until = time.monotonic() + PATIENCE_S
    _ending.set()
    logging.getLogger("kernel_monitor.loaders").setLevel(logging.CRITICAL + 1)
    while _uses and time.monotonic() < _until:
        time.sleep(0.01)


@in_forked_children
def _in_child() -> None:
    """Let a forked child end at once: what used a pipeline at the fork is a thread of the parent."""
    atexit.unregister(_end)
    _uses.clear()
