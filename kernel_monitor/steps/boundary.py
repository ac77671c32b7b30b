"""Calls on the loop's own thread: between two steps, or between two Python instructions of the main thread."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..os_process import in_forked_children

# ---- Calls between two steps of a loop, on the loop's own thread.


@dataclass
class BoundaryInfo:
    """The place of a loop when it makes the call."""

    loader_id: str  # of the source whose step ended
    steps: int  # that ended in it so far
    flags: int = 0  # of the step that begins now (see `Step`)

    def flag(self, flags: int) -> None:
        """Set flags of the step that begins now."""
        self.flags |= flags


Call = Callable[[BoundaryInfo], bool]

log = logging.getLogger(__name__)
_lock = threading.Lock()
waiting: tuple[tuple[str | None, Call], ...] = ()
"""The calls, each with its source's id. Replaced as a whole, so that a loop reads it without the lock; a step without
calls costs nothing."""


def at_boundary(loader_id: str | None, call: Call) -> Callable[[], None]:
    """Call a function at each boundary of a source's steps until it returns False; returns a function that cancels it.

    It runs on the loop's own thread when the next batch is asked for, and its time counts into no step. An exception is
    logged and cancels it; only KeyboardInterrupt and its like reach the loop. Without an id it is any source's.
    """
    global waiting  # noqa: PLW0603
    entry = (loader_id, call)
    with _lock:
        waiting = (*waiting, entry)
    return lambda: _cancel(entry)


def run(loader_id: str, steps: int) -> int:
    """Make the calls of a source's boundary; returns the flags of the step that begins."""
    info = BoundaryInfo(loader_id, steps)
    for entry in waiting:
        wanted, call = entry
        if wanted not in (None, loader_id):
            continue
        again = False
        try:
            again = call(info)
        except Exception:  # the monitor's own work must not end the training
            log.exception("a call between two steps failed")
        finally:
            if not again:
                _cancel(entry)
    return info.flags


def _cancel(entry: tuple[str | None, Call]) -> None:
    global waiting  # noqa: PLW0603
    with _lock:
        waiting = tuple(kept for kept in waiting if kept is not entry)


@in_forked_children
def _in_child() -> None:
    global _lock, waiting  # noqa: PLW0603 - in a forked child nothing of ours goes on
    _lock = threading.Lock()
    waiting = ()


# ---- Run something on the main thread from another one, between two of its Python instructions.

RETRY_S = 0.05
_RETRIES = 100  # CPython keeps 32 such calls, of everybody in the process; a full queue is tried again for a while

_waiting: deque[tuple[int, Callable[[], None]]] = deque()


def run_on_main_thread(work: Callable[[], None]) -> bool:
    """Have `work` called on the main thread as soon as that executes Python; returns before.

    An Exception of `work` is logged; a KeyboardInterrupt in it is raised where the main thread is. In a child that was
    forked meanwhile `work` is not called.

    Returns:
        Whether it will be called: not where the interpreter has had no room for it for 5 s.
    """
    entry = (os.getpid(), work)
    _waiting.append(entry)
    is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    for _ in range(_RETRIES):
        if ctypes.pythonapi.Py_AddPendingCall(is_true, ctypes.py_object(_CALLS)) == 0:
            return True
        time.sleep(RETRY_S)
    if entry in _waiting:
        _waiting.remove(entry)
    return False


class _Calls:
    """Makes the calls that wait when it is asked for its truth."""

    def __bool__(self) -> bool:
        while _waiting:
            process, work = _waiting.popleft()
            if process != os.getpid():
                continue
            try:
                work()
            except Exception:  # the monitor's own work must not end what the main thread does
                log.exception("a call on the main thread failed")
        return False  # no error, for the interpreter


_CALLS = _Calls()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_CALLS))  # for ever, whatever becomes of this module
