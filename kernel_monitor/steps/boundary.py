"""Calls between two steps of a loop, on the loop's own thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class BoundaryInfo:
    """Where a loop is when it makes the call."""

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


def _in_child() -> None:
    global _lock, waiting  # noqa: PLW0603 - in a forked child nothing of ours goes on
    _lock = threading.Lock()
    waiting = ()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
