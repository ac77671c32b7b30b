"""What everything that is measured has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAN = float("nan")

SLOW_PERIOD_S = 0.5
"""How often the metrics that move slowly are read; their values are held in between."""


class Probe(Protocol):
    """What is read together, at one moment.

    Attributes:
        group: its name (`metrics.GROUPS`); frames carry `sample/<group>/age` and `/window`. The window is the time
            between two reads: what the rates of a read cover.
        period: seconds between two reads.
        series: (name, unit) of each value, in order. A read may change it, by setting a new one.
        reasons: why a metric, or the whole group, is absent: {name: words}. A read may change it, by setting a new one.
    """

    @property
    def group(self) -> str: ...

    @property
    def period(self) -> float: ...

    @property
    def series(self) -> Sequence[tuple[str, str]]: ...

    @property
    def reasons(self) -> Mapping[str, str]: ...

    def read(self, now: float, /) -> Sequence[float]:
        """The values at `now` (`time.monotonic()`), one per series, NaN where there is none.

        Rates are over the time since the last read; the first read has none. The sequence may be used again by the
        next read. An exception makes the group's values missing and is told once.
        """
        ...


class Fact(Protocol):
    """What the hello says about the host and what may change meanwhile: a container's limits, the cores' places.

    Attributes:
        key: its name in the hello's `host`.
        period: seconds between two reads.
        reasons: why it, or a part of it, is unknown: {name: words}, for `host["reasons"]`.
    """

    @property
    def key(self) -> str: ...

    @property
    def period(self) -> float: ...

    @property
    def reasons(self) -> Mapping[str, str]: ...

    def read(self) -> object:
        """What the hello is to say, as JSON knows it; a hello is sent again when it differs from the last one."""
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
