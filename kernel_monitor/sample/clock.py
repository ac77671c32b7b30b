"""Session time: seconds since the session began, including those in which the machine was suspended.

`time.monotonic()` stands still while a machine is suspended; session time goes on, so that a suspension is a gap on the
axis and the wall times after it are right. It ignores steps of the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

_SLEPT_S = 0.05  # the two clocks are read one after the other: a difference that grows by less is no suspension


def boottime() -> float:
    """Return seconds of a clock that runs during suspension, or `time.monotonic()` where there is no such clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(eq=False)
class SessionClock:
    """A conversion from `time.monotonic()` to session time.

    The clock must be made when the session begins. A clock that is made later, in another process, takes
    `clock.zero - clock.suspended` as its zero, which accounts for the suspensions until then.
    """

    zero: float  # monotonic time at which the session began
    origin: float  # Unix time at which the session began
    _: KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    asleep: Callable[[], float] = boottime

    def __post_init__(self) -> None:
        self._difference = self.asleep() - self.monotonic()
        self._sleeps: list[tuple[float, float]] = [(float("-inf"), 0.0)]
        self._last_reading = self.monotonic()

    @property
    def suspended(self) -> float:
        """Seconds since the session began in which the machine slept."""
        moment = self.monotonic()
        slept = self.asleep() - moment - self._difference
        if slept - self._sleeps[-1][1] > _SLEPT_S:
            self._sleeps.append((self._last_reading, slept))  # the machine slept since then
        self._last_reading = moment
        return self._sleeps[-1][1]

    def time(self, monotonic: float) -> float:
        """Return the session time of a `time.monotonic()` reading."""
        slept = self.suspended
        for since, until_then in reversed(self._sleeps):
            if monotonic > since:
                slept = until_then
                break
        return monotonic - self.zero + slept

    def wall(self, monotonic: float) -> float:
        """Return the Unix time of a `time.monotonic()` reading, counted from the session's `origin`."""
        return self.origin + self.time(monotonic)
