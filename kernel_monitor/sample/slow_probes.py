"""The probes that are read on a thread of their own; frames carry the newest values.

So the clock's thread never waits for a file that takes long (a cgroup under pressure, 256 cores' frequencies).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .probe import Fact, Probe, ProbeReader, Reading

BEFORE_S = 0.1  # how long before a frame the groups are read whose period is shorter than the frames' interval


@dataclass(eq=False)
class Background:
    """Reads probes and facts at their periods, on one thread named `slow`.

    Reads are due at multiples of their period since `zero`: together, so that the thread wakes seldom, and between the
    frames, which are taken at odd multiples of half an interval. Where frames are rarer than that, reads are as rare,
    and come shortly before them.
    """

    probes: Sequence[Probe]  # the host's metrics
    facts: Sequence[Fact]  # facts of the hello that may change
    complain: Callable[[str, Exception], None]  # called on the thread `slow` with each failure, (name, error)
    interval: float  # seconds between frames
    zero: float  # monotonic time from which the periods are counted

    def __post_init__(self) -> None:
        self._readers = [ProbeReader(probe, self.complain) for probe in self.probes]
        self._facts_due = dict.fromkeys(self.facts, 0.0)
        self._found: dict[str, object] = {}
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
        self.interval, self.zero = interval, zero
        self._wake.set()

    @property
    def groups(self) -> list[str]:
        return [reader.probe.group for reader in self._readers]

    def readings(self) -> list[Reading]:
        """The newest reading of each probe, in order; from any thread."""
        return [reader.newest for reader in self._readers]

    def newest_facts(self) -> dict[str, object]:
        """The facts by their keys."""
        return self._found

    def reasons(self) -> dict[str, str]:
        """Why a metric, a group or a fact is absent."""
        reasons: dict[str, str] = {}
        for reader in self._readers:
            reasons |= reader.probe.reasons
        for fact in self.facts:
            reasons |= fact.reasons
        return reasons

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            due = min([*(reader.due for reader in self._readers), *self._facts_due.values()], default=now + 1.0)
            if not self._wake.wait(max(0.0, due - now)):
                self._round(time.monotonic())
                continue
            self._wake.clear()
            now = time.monotonic()
            for reader in self._readers:
                reader.due = self._next(now, reader.probe.period)

    def _round(self, now: float) -> None:
        """Read what is due."""
        for reader in self._readers:
            if now >= reader.due:
                reader.read(time.monotonic())
                reader.due = self._next(now, reader.probe.period)
        for fact, due in self._facts_due.items():
            if now >= due:
                self._facts_due[fact] = self._next(now, fact.period)
                try:
                    found = fact.read()
                except Exception as error:  # noqa: BLE001 - a fact that cannot be read must not end the metrics
                    self.complain(fact.key, error)
                else:
                    self._found = {**self._found, fact.key: found}

    def _next(self, now: float, period: float) -> float:
        """The first moment of the period that is at least half a period away: a rate over less is mostly noise."""
        first = self.zero
        if self.interval > period:
            period = self.interval
            first += max(0.25 * period, 0.5 * period - BEFORE_S)
        return first + math.ceil((now - first) / period + 0.5 - 1e-9) * period
