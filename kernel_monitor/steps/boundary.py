"""Calls that a loop makes between two of its steps, on its own thread: for what must begin and end there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class BoundaryInfo:
    """Where a loop is when it makes the call.

    Attributes:
        loader_id: of the source whose step ended.
        steps: that ended in it so far.
        flags: what `flag` has set.
    """

    loader_id: str
    steps: int
    flags: int = field(default=0)

    def flag(self, flags: int) -> None:
        """Set flags (`steps.records`) for the step that begins now."""
        self.flags |= flags


Call = Callable[[BoundaryInfo], bool]

problems: list[str] = []
"""What calls raised, newest last, for people."""
PROBLEMS_KEPT = 20

_lock = threading.Lock()
_waiting: tuple[tuple[str | None, Call], ...] = ()


class Waiting:
    """Whether anything is to be called: one attribute, which is all that a step looks at."""

    anything = False


def at_boundary(loader_id: str | None, call: Call) -> Callable[[], None]:
    """Have a call made at each boundary of a source's steps until it returns False; returns what ends it sooner.

    It runs on the loop's own thread when the next batch is asked for, and its time counts into no step. What it raises
    ends it and goes to `problems`; only KeyboardInterrupt and its like reach the loop.

    Args:
        loader_id: of the source; None: whichever steps.
        call: is given where the loop is, and returns whether it wants to be called again.
    """
    one = (loader_id, call)
    _change(add=one)
    return lambda: _change(remove=one)


def run(loader_id: str, steps: int) -> int:
    """Make the calls of a source's boundary; returns the flags of the step that begins."""
    info = BoundaryInfo(loader_id, steps)
    for one in _waiting:
        wanted, call = one
        if wanted not in (None, loader_id):
            continue
        again = False
        try:
            again = call(info)
        except Exception as error:  # noqa: BLE001 - the training goes on; whoever asked reads the problem
            problems.append(f"{type(error).__name__}: {error}")
            del problems[:-PROBLEMS_KEPT]
        finally:
            if not again:
                _change(remove=one)
    return info.flags


def _change(*, add: tuple[str | None, Call] | None = None, remove: tuple[str | None, Call] | None = None) -> None:
    global _waiting  # noqa: PLW0603 - replaced as a whole, so that a loop reads it without the lock
    with _lock:
        kept = tuple(one for one in _waiting if one is not remove)
        _waiting = kept if add is None else (*kept, add)
        Waiting.anything = bool(_waiting)


def _in_child() -> None:
    global _lock, _waiting  # noqa: PLW0603 - in a forked child nothing of ours goes on
    _lock = threading.Lock()
    _waiting = ()
    Waiting.anything = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
