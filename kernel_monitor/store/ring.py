"""A bounded ring of rows over named columns. Not thread-safe: the store locks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


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
        self._gone = 0  # rows that a smaller ring could not keep
        self._names = tuple(names)
        self._time = np.zeros(capacity, dtype=np.float64)
        self._values = np.full((capacity, len(self._names)), np.nan, dtype=np.float32)

    @property
    def width(self) -> int:
        return len(self._names)

    @property
    def newest(self) -> npt.NDArray[np.float32]:
        """The newest row's values, not copied.

        Raises:
            ValueError: there is none.
        """
        if self.last_seq <= self._gone:
            raise ValueError("no row was added yet")
        row: npt.NDArray[np.float32] = self._values[(self.last_seq - 1) % self.capacity]
        return row

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

    def resize(self, capacity: int) -> None:
        """Have room for `capacity` rows from now on; the newest of those that are kept stay.

        Raises:
            ValueError: there would be no room for a row.
        """
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one row, not {capacity}")
        numbers, time, values = self.since(self.last_seq - capacity)
        self._time = np.zeros(capacity, dtype=np.float64)
        self._values = np.full((capacity, self.width), np.nan, dtype=np.float32)
        self.capacity = capacity
        self._gone = self.last_seq - len(numbers)
        places = (numbers - 1) % capacity
        self._time[places], self._values[places] = time, values

    def times(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Copies of the numbers and times of the rows that are kept, oldest first."""
        numbers, time, _ = self.since(0, np.empty(0, dtype=np.intp))
        return numbers, time

    def since(
        self, seq: int, columns: npt.NDArray[np.intp] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        """Copies of the numbers, times and values of the rows after number `seq` that are still kept.

        Args:
            seq: the number before the first row that is wanted.
            columns: which columns; all by default.
        """
        first = max(seq, self.last_seq - self.capacity, self._gone) + 1
        count = max(0, self.last_seq - first + 1)
        numbers = np.arange(first, first + count, dtype=np.int64)
        start = (first - 1) % self.capacity
        head = min(count, self.capacity - start)  # rows up to the end of the arrays; the others are at their start
        time = np.empty(count, dtype=np.float64)
        time[:head], time[head:] = self._time[start : start + head], self._time[: count - head]
        first_part, second_part = self._values[start : start + head], self._values[: count - head]
        values = np.empty((count, self.width if columns is None else len(columns)), dtype=np.float32)
        if columns is None:
            values[:head], values[head:] = first_part, second_part
        else:
            values[:head], values[head:] = first_part[:, columns], second_part[:, columns]
        return numbers, time, values
