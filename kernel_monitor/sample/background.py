"""What is not read with every frame: a thread of its own reads it, and frames carry the newest values.

The clock's thread never waits for a file that takes long (a cgroup under pressure, 256 cores' frequencies).
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from .probe import NAN, Fact, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


BEFORE_S = 0.1
"""How long before a frame the groups are read whose period is shorter than the frames' interval."""


class Reading(NamedTuple):
    """What one read of a probe gave.

    Attributes:
        series: (name, unit) of each value.
        values: one per series.
        stamp: `time.monotonic()` when it was read.
        window: seconds since the read before; NaN for the first.
    """

    series: Sequence[tuple[str, str]]
    values: Sequence[float]
    stamp: float
    window: float


class _Slot:
    """A probe, its newest reading and when it is due."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.due = 0.0
        self.newest = Reading(tuple(probe.series), [NAN] * len(probe.series), NAN, NAN)


class Background:
    """Reads probes and facts at their periods, on one thread named `slow`.

    Reads are due at multiples of their period since `zero`: together, so that the thread wakes seldom, and between the
    frames, which are taken at odd multiples of half an interval. Where frames are rarer than that, reads are as rare,
    and come shortly before them.

    Args:
        probes: what is measured.
        facts: what the hello says of the host and what may change.
        complain: told about each failure, (name, error); called on the thread `slow`.
        interval: seconds between frames.
        zero: monotonic time from which the periods are counted.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        facts: Sequence[Fact],
        complain: Callable[[str, Exception], None],
        interval: float,
        zero: float,
    ) -> None:
        self._slots = [_Slot(probe) for probe in probes]
        self._facts = list(facts)
        self._facts_due = [0.0] * len(self._facts)
        self._found: dict[str, object] = {}
        self._complain = complain
        self._zero = zero
        self._interval = interval
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="slow", daemon=True)

    def start(self) -> None:
        """Read everything once, on this thread, so that rates count from here; then go on beside it."""
        self._round(time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """Read no more. A file that hangs is left to end with the process."""
        self._stopping = True
        self._wake.set()

    def replan(self, interval: float, zero: float) -> None:
        """Go on beside frames of another interval, or after the machine slept."""
        self._interval, self._zero = interval, zero
        self._wake.set()

    @property
    def groups(self) -> list[str]:
        """The probes' groups, in order."""
        return [slot.probe.group for slot in self._slots]

    def readings(self) -> list[Reading]:
        """The newest reading of each probe, in order; each may be read by another thread at any time."""
        return [slot.newest for slot in self._slots]

    def facts(self) -> dict[str, object]:
        """What the facts say, by their keys."""
        return self._found

    def reasons(self) -> dict[str, str]:
        """Why a metric, a group or a fact is absent."""
        reasons: dict[str, str] = {}
        for slot in self._slots:
            reasons |= slot.probe.reasons
        for fact in self._facts:
            reasons |= fact.reasons
        return reasons

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            due = min([*(slot.due for slot in self._slots), *self._facts_due], default=now + 1.0)
            if not self._wake.wait(max(0.0, due - now)):
                self._round(time.monotonic())
                continue
            self._wake.clear()
            now = time.monotonic()
            for slot in self._slots:
                slot.due = self._next(now, slot.probe.period)

    def _round(self, now: float) -> None:
        """Read what is due."""
        for slot in self._slots:
            if now >= slot.due:
                self._read(slot)
                slot.due = self._next(now, slot.probe.period)
        for which, fact in enumerate(self._facts):
            if now >= self._facts_due[which]:
                self._facts_due[which] = self._next(now, fact.period)
                try:
                    found = fact.read()
                except Exception as error:  # noqa: BLE001 - as below
                    self._complain(fact.key, error)
                else:
                    self._found = {**self._found, fact.key: found}

    def _read(self, slot: _Slot) -> None:
        probe, before = slot.probe, slot.newest
        now = time.monotonic()
        try:
            values = list(probe.read(now))
        except Exception as error:  # noqa: BLE001 - one thing that cannot be measured must not end the others
            values = [NAN] * len(probe.series)
            self._complain(probe.group, error)
        # A reading never changes: the clock's thread may be looking at the one before.
        slot.newest = Reading(tuple(probe.series), values, now, now - before.stamp)

    def _next(self, now: float, period: float) -> float:
        """The first moment of the period that is at least half a period away: a rate over less is mostly noise."""
        first = self._zero
        if self._interval > period:
            period = self._interval
            first += max(0.25 * period, 0.5 * period - BEFORE_S)
        return first + math.ceil((now - first) / period + 0.5 - 1e-9) * period
