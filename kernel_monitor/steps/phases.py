"""Which phase a thread is in, and how long it was in each: times of the host, exclusive of each other.

The hooks of watched models and `phase` write the phases of their own thread; the step clocks of that thread read them.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic
from types import CodeType, FrameType
from typing import NamedTuple

from ..os_process import in_forked_children
from .cuda_times import Trail

COPY, FORWARD, BACKWARD, OPTIMIZER, OUTSIDE = range(5)
"""Places in `_ThreadPhases.spent`; `OUTSIDE` is what must not count into any step: the profiler's own work."""
KINDS = 5


class Mark(NamedTuple):
    """A thread's phases when a batch came: `spent` until then, and which generation of watches it was."""

    phases: _ThreadPhases
    spent: tuple[float, ...]
    generation: int


class _ThreadPhases:
    """One thread's phases."""

    __slots__ = ("_open", "_since", "on_device", "spent", "trails", "used")

    def __init__(self) -> None:
        self.spent = [0.0] * KINDS  # s, by kind, since the thread's first phase
        self.used = False  # some phase was entered
        self.on_device = False  # the models that run on this thread are on a GPU; the phases are then timed there too
        self.trails: list[Trail] = []  # of the steps under way on this thread
        # The phases that are open, the innermost last, each with the function that has to be running; None: a `with`.
        self._open: list[tuple[int, CodeType | None]] = []
        self._since = 0.0  # until when `spent` is up to date, while a phase is open

    def enter(self, kind: int, code: CodeType | None = None) -> None:
        """A phase begins; the one that it interrupts does not count on meanwhile.

        `code` is of the function that calls our hooks at the phase's beginning and end. An interrupt skips the second
        hook, so the phase counts only as long as the function runs.
        """
        if self._open:
            if code is not None:
                self.heal()
            self.settle()
        else:
            self._since = monotonic()
        self.used = True
        self._open.append((kind, code))
        if self.trails:
            self.stamp()

    def leave(self, kind: int) -> None:
        """The innermost phase of that kind ends, with those inside it that were not ended."""
        if all(inside != kind for inside, _ in self._open):
            return
        self.settle()
        while self._open.pop()[0] != kind:
            pass
        if self.trails:
            self.stamp()

    @property
    def idle(self) -> bool:
        return not self._open

    @property
    def kind(self) -> int:
        """The phase that counts now; -1: none."""
        return self._open[-1][0] if self._open else -1

    def settle(self, now: float | None = None) -> None:
        """Bring `spent` up to date."""
        if self._open:
            now = monotonic() if now is None else now
            self.spent[self.kind] += max(0.0, now - self._since)
            self._since = now

    def heal(self) -> None:
        """Close the phases whose function no longer runs: it was interrupted between its hooks."""
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame.f_code))
            frame = frame.f_back
        kept = [(kind, code) for kind, code in self._open if code is None or id(code) in running]
        if len(kept) < len(self._open):
            self.settle()
            self._open = kept

    def stamp(self) -> None:
        """Mark the change of phase on the device, for every step under way; those that have too many marks drop out."""
        stamp, kind = self.trails[0].now(), self.kind
        self.trails = [trail for trail in self.trails if trail.add(kind, stamp)]

    def mark(self, now: float) -> Mark | None:
        """The phases up to now; None if none was ever entered."""
        if not self.used:
            return None
        self.settle(now)
        return Mark(self, tuple(self.spent), watched.generation)

    def since(self, mark: Mark, now: float) -> list[float] | None:
        """s by kind since a mark of the same thread; None when a model was watched or let go in between."""
        if mark.phases is not self or mark.generation != watched.generation:
            return None
        if self._open:
            self.heal()
            self.settle(now)
        return [new - old for new, old in zip(self.spent, mark.spent, strict=True)]


class Watched:
    """How many models are watched in this process."""

    def __init__(self) -> None:
        self.models = 0  # 0 in forked children
        self.generation = 0  # goes up with every model that is watched or let go

    def changed(self, by: int) -> None:
        self.models = max(0, self.models + by)
        self.generation += 1


class _Local(threading.local):
    def __init__(self) -> None:
        self.phases = _ThreadPhases()


watched = Watched()
_local = _Local()


def thread_phases() -> _ThreadPhases:
    return _local.phases


@in_forked_children
def _in_child() -> None:
    global _local  # noqa: PLW0603 - a loader worker starts with an empty phases
    _local = _Local()
    watched.models = 0
    watched.generation += 1
