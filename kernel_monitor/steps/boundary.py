"""Functions that other threads have called on a loop's thread between two steps, or on the main thread at any time."""

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
    """The position of a loop when it makes the call."""

    loader_id: str  # id of the source whose step ended
    steps: int  # number of its steps that have ended
    flags: int = 0  # flags of the step that begins now (see `Step`)

    def flag(self, flags: int) -> None:
        """Set flags of the step that begins now."""
        self.flags |= flags


Call = Callable[[BoundaryInfo], bool]

log = logging.getLogger(__name__)
_lock = threading.Lock()
waiting: tuple[tuple[str | None, Call], ...] = ()
"""The registered calls, each with its source's id or None. The tuple is replaced as a whole, so that a loop reads it
without the lock; a step without calls costs nothing."""


def call_between_steps(loader_id: str | None, call: Call) -> Callable[[], None]:
    """Call a function at each boundary between a source's steps until it returns False.

    It runs on the loop's thread when the next batch is requested, and its time belongs to no step. An Exception is
    logged and cancels it; KeyboardInterrupt and the like reach the loop.

    Args:
        loader_id: the source's id; None for any source.
        call: the function.

    Returns:
        A function that cancels the calls.
    """
    global waiting  # noqa: PLW0603
    entry = (loader_id, call)
    with _lock:
        waiting = (*waiting, entry)
    return lambda: _cancel(entry)


def run(loader_id: str, steps: int) -> int:
    """Make the calls of a source's boundary; return the flags of the step that begins."""
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
    global _lock, waiting  # noqa: PLW0603 - a forked child makes no calls
    _lock = threading.Lock()
    waiting = ()


# ---- Calls on the main thread, between two of its Python instructions.

RETRY_S = 0.05
_RETRIES = 100  # CPython's queue holds 32 such calls of the whole process; a full queue is tried again for 5 s

_waiting: deque[tuple[int, Callable[[], None]]] = deque()


def run_on_main_thread(work: Callable[[], None]) -> bool:
    """Schedule `work` to be called on the main thread as soon as that executes Python, and return without waiting.

    An Exception of `work` is logged; a KeyboardInterrupt in it is raised at the main thread's present instruction. A
    child that is forked meanwhile does not call `work`.

    Returns:
        True if it will be called; False if the interpreter's queue has been full for 5 s.
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
    """An object that makes the waiting calls when the interpreter evaluates its truth value."""

    def __bool__(self) -> bool:
        while _waiting:
            process, work = _waiting.popleft()
            if process != os.getpid():
                continue
            try:
                work()
            except Exception:  # the monitor's own work must not end what the main thread does
                log.exception("a call on the main thread failed")
        return False  # tells the interpreter that there was no error


_CALLS = _Calls()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_CALLS))  # it must outlive this module
