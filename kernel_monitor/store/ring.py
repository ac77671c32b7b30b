"""A bounded ring of rows over named columns. Not thread-safe: the store locks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BLOCK = 64  # rows that are copied at once, while the processor's cache has them


class Ring:
    """The newest `capacity` rows: a number, a time and float32 values each; `names` are the columns in order."""

    def __init__(self, capacity: int, names: Sequence[str] = ()) -> None:
        self.last_seq = 0
        self._gone = 0  # rows that a smaller ring could not keep
        self._names = tuple(names)
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one row, not {capacity}")
        self.capacity = capacity
        self._time = np.zeros(capacity, dtype=np.float64)
        self._values = np.empty((capacity, self.width), dtype=np.float32)  # a row is read only once it was written

    @property
    def width(self) -> int:
        return len(self._names)

    @property
    def newest(self) -> npt.NDArray[np.float32]:
        """The newest row's values, not copied; a ValueError if there is none."""
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
        old = {name: column for column, name in enumerate(self._names)}
        source = np.array([old.get(name, -1) for name in names], dtype=np.intp)
        new = source < 0
        source[new] = 0
        fresh = np.empty((self.capacity, len(names)), dtype=np.float32)
        used = min(self.last_seq, self.capacity)  # the other rows take no memory until they are written
        for first in range(0, used, BLOCK):
            rows = slice(first, min(used, first + BLOCK))
            if self.width:
                np.take(self._values[rows], source, axis=1, out=fresh[rows], mode="clip")
            fresh[rows, new] = np.nan
        self._values = fresh
        self._names = tuple(names)

    def resize(self, capacity: int) -> None:
        """Have room for `capacity` rows from now on; the newest of those that are kept stay."""
        numbers, time, values = self.since(self.last_seq - capacity)
        self._allocate(capacity)
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
        """Copies of the numbers, times and values (of these columns, or all) of the rows after `seq` still kept."""
        first = max(seq, self.last_seq - self.capacity, self._gone) + 1
        numbers = np.arange(first, self.last_seq + 1, dtype=np.int64)
        places = (numbers - 1) % self.capacity
        values = self._values[places] if columns is None else self._values[np.ix_(places, columns)]
        return numbers, self._time[places], values
