"""Session time: seconds since the session began, those in which the machine slept included.

`time.monotonic()` stands still while a machine is suspended; session time goes on, so that a sleep is a gap on the axis
and the wall times after it are right. Steps of the wall clock never reach it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLEPT_S = 0.05
"""A difference of the clocks that grows by less is the two readings' distance, not a sleep."""


def boottime() -> float:
    """Seconds that go on while the machine sleeps; where no such clock is known, `time.monotonic()`."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SessionClock:
    """From `time.monotonic()` to session time.

    Args:
        zero: monotonic time at which the session began.
        origin: Unix time of the same moment.
        monotonic, asleep: the clocks: one that stands while the machine sleeps, one that goes on.

    The clock must be made when the session begins. One that is made later, in another process, is given
    `clock.zero - clock.suspended` for its zero: the sleeps up to then.
    """

    def __init__(
        self,
        zero: float,
        origin: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        asleep: Callable[[], float] = boottime,
    ) -> None:
        self.zero = zero
        self.origin = origin
        self._monotonic = monotonic
        self._asleep = asleep
        self._difference = asleep() - monotonic()
        self._sleeps: list[tuple[float, float]] = [(float("-inf"), 0.0)]
        self._looked = monotonic()

    @property
    def suspended(self) -> float:
        """Seconds since the session began in which the machine slept."""
        moment = self._monotonic()
        slept = self._asleep() - moment - self._difference
        if slept - self._sleeps[-1][1] > SLEPT_S:
            # It slept after the last look, at which all was as before.
            self._sleeps.append((self._looked, slept))
        self._looked = moment
        return self._sleeps[-1][1]

    def time(self, monotonic: float) -> float:
        """Session time of a moment that `time.monotonic()` gave."""
        slept = self.suspended
        for since, until_then in reversed(self._sleeps):
            if monotonic > since:
                slept = until_then
                break
        return monotonic - self.zero + slept

    def wall(self, monotonic: float) -> float:
        """Unix time of that moment, by the wall clock of the session's beginning."""
        return self.origin + self.time(monotonic)
