"""A bounded ring of rows over named columns. Not thread-safe: the store guards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ring:
    """The newest `capacity` rows: a number, a time and float32 values each.

    Args:
        capacity: the most rows that are kept, at least 1.
        names: the columns in order.
    """

    def __init__(self, capacity: int, names: Sequence[str] = ()) -> None:
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one row, not {capacity}")
        self.capacity = capacity
        self.last_seq = 0
        self._names = tuple(names)
        self._time = np.zeros(capacity, dtype=np.float64)
        self._values = np.full((capacity, len(self._names)), np.nan, dtype=np.float32)

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self._names)

    def append(self, time: float, values: npt.NDArray[np.float32]) -> int:
        """Add a row of `width` values over the oldest one; returns its number, from 1, never reused."""
        place = self.last_seq % self.capacity
        self._values[place] = values
        self._time[place] = time
        self.last_seq += 1
        return self.last_seq

    def rename(self, names: Sequence[str]) -> None:
        """Take these columns from now on: those with a known name keep their past, the others are NaN in it."""
        fresh = np.full((self.capacity, len(names)), np.nan, dtype=np.float32)
        old = {name: column for column, name in enumerate(self._names)}
        kept = [(column, old[name]) for column, name in enumerate(names) if name in old]
        if kept:
            to, source = (list(columns) for columns in zip(*kept, strict=True))
            fresh[:, to] = self._values[:, source]
        self._values = fresh
        self._names = tuple(names)

    def since(self, seq: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        """Copies of the numbers, times and values of the rows after number `seq` that are still kept."""
        first = max(seq, self.last_seq - self.capacity, 0) + 1
        count = max(0, self.last_seq - first + 1)
        numbers = np.arange(first, first + count, dtype=np.int64)
        start = (first - 1) % self.capacity
        head = min(count, self.capacity - start)  # rows up to the end of the arrays; the others are at their start
        time = np.empty(count, dtype=np.float64)
        values = np.empty((count, self.width), dtype=np.float32)
        time[:head], time[head:] = self._time[start : start + head], self._time[: count - head]
        values[:head], values[head:] = self._values[start : start + head], self._values[: count - head]
        return numbers, time, values
