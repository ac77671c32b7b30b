"""Run something on the main thread from another one, between two of its Python instructions.

CPython keeps a queue of C functions for this (`Py_AddPendingCall`), which the main thread calls when it executes Python
again: after a long C call (an operator of torch, a read) that may be minutes later, and nothing can be taken out of
the queue. So what lies in it must never be freed. It is CPython's own `PyObject_IsTrue` with an object of ours that
lives for ever and whose `__bool__` does the work: a callback made by ctypes could be freed, and it could not raise.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import deque
from collections.abc import Callable

RETRY_S = 0.05
RETRIES = 100  # CPython keeps 32 such calls, of everybody in the process; a full queue is tried again for a while

log = logging.getLogger(__name__)
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
    for _ in range(RETRIES):
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
