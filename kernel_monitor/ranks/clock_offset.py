"""How far another machine's monotonic clock is from the kernel's, from messages there and back.

As NTP does it (RFC 5905, section 8): of the four times of an exchange the offset is the mean of both ways'
differences, wrong by at most half of the time that the messages were under way. Of the exchanges of the last minute
the quickest one counts.
"""

from __future__ import annotations

from collections import deque

KEPT_S = 60.0  # clocks drift: an older exchange says less than its bound promises


class ClockOffset:
    """Offsets seen by one side."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque()  # when (s), delay (s), offset (s)

    def add(self, asked: float, received: float, answered: float, got: float) -> None:
        """An exchange: `asked` and `got` by our clock, `received` and `answered` by the other one (s)."""
        delay = (got - asked) - (answered - received)
        if delay < 0 or got < asked:
            return
        while self._seen and got - self._seen[0][0] > KEPT_S:
            self._seen.popleft()
        self._seen.append((got, delay, ((received - asked) + (answered - got)) / 2))

    @property
    def best(self) -> tuple[float, float] | None:
        """s to add to our time for the other's, and the most by which that is wrong (s); None before an exchange."""
        if not self._seen:
            return None
        _, delay, offset = min(self._seen, key=lambda seen: seen[1])
        return offset, delay / 2
