"""Session time: seconds since the session began, those in which the machine slept included.

`time.monotonic()` stands still while a machine is suspended; session time goes on, so that a sleep is a gap on the axis
and the wall times after it are right. Steps of the wall clock never reach it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

_SLEPT_S = 0.05  # a difference of the clocks that grows by less is the two readings' distance, not a sleep


def boottime() -> float:
    """Seconds that go on while the machine sleeps; where there is no such clock, `time.monotonic()`."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(eq=False)
class SessionClock:
    """From `time.monotonic()` to session time.

    The clock must be made when the session begins. One that is made later, in another process, is given
    `clock.zero - clock.suspended` for its zero: the sleeps up to then.
    """

    zero: float  # monotonic time at which the session began
    origin: float  # Unix time of the same moment
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    asleep: Callable[[], float] = boottime

    def __post_init__(self) -> None:
        self._difference = self.asleep() - self.monotonic()
        self._sleeps: list[tuple[float, float]] = [(float("-inf"), 0.0)]
        self._looked = self.monotonic()

    @property
    def suspended(self) -> float:
        """Seconds since the session began in which the machine slept."""
        moment = self.monotonic()
        slept = self.asleep() - moment - self._difference
        if slept - self._sleeps[-1][1] > _SLEPT_S:
            # It slept since the last reading.
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
