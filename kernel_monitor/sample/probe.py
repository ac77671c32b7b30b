"""What everything that is measured has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

NAN = float("nan")

SLOW_PERIOD_S = 0.5
"""How often the metrics that move slowly are read; their values are held in between."""


class Probe(Protocol):
    """One thing that is measured.

    Attributes:
        series: (name, unit) of each value, in order.
        period: seconds between two reads; the loop rounds it to whole frames, at least one.
    """

    @property
    def series(self) -> Sequence[tuple[str, str]]: ...

    @property
    def period(self) -> float: ...

    def read(self, now: float, /) -> Sequence[float]:
        """The values at `now` (`time.monotonic()`), one per series, NaN where there is none.

        Rates are over the time since the last read; the first read has none. The sequence may be used again by the
        next read.
        """
        ...


class Rates:
    """Growth per second of counters that only grow.

    Args:
        count: how many counters.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._last: Sequence[int] | None = None
        self._at = 0.0

    def update(self, now: float, counters: Sequence[int]) -> list[float]:
        """Rates since the last update; NaN at first, and where a counter fell (a device went, a counter wrapped)."""
        last, elapsed = self._last, now - self._at
        self._last, self._at = counters, now
        if last is None or elapsed <= 0:
            return [NAN] * self._count
        return [(new - old) / elapsed if new >= old else NAN for new, old in zip(counters, last, strict=True)]
