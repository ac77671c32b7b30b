"""Long sessions in a few thousand rows: means over equal stretches of time, where there was anything at all."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def width(first: float, last: float, interval: float, rows: int) -> float:
    """Seconds of a bin so that `first` to `last` need at most `rows`: whole intervals."""
    return interval * max(1, math.ceil((last - first) / max(1, rows - 1) / interval))


class Bins:
    """Takes rows in the order of their times, and gives the means of each bin that has some.

    Args:
        width: seconds; bin k is [k·width, (k + 1)·width).
    """

    def __init__(self, width: float) -> None:
        self._width = width
        self._times: list[npt.NDArray[np.float64]] = []
        self._means: list[npt.NDArray[np.float32]] = []
        # The rows of the newest bin, which the next ones may belong to as well.
        self._open: tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]] | None = None

    def add(self, times: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
        """Take rows: times[n], values[m, n]; NaN is missing."""
        if self._open is not None:
            times = np.concatenate([self._open[0], times])
            values = np.concatenate([self._open[1], values], axis=1)
        if len(times) == 0:
            return
        numbers = np.floor(times / self._width)
        done = int(np.searchsorted(numbers, numbers[-1]))
        self._open = times[done:], values[:, done:].copy()
        self._close(numbers[:done], values[:, :done])

    def result(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        """The bins' middles, float64[k], and means, float32[m, k]."""
        if self._open is not None:
            times, values = self._open
            self._open = None
            self._close(np.floor(times / self._width), values)
        if not self._times:
            return np.empty(0), np.empty((0, 0), dtype=np.float32)
        return np.concatenate(self._times), np.concatenate(self._means, axis=1)

    def _close(self, numbers: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
        if len(numbers) == 0:
            return
        starts = np.flatnonzero(np.diff(numbers, prepend=-np.inf))
        there = ~np.isnan(values)
        sums = np.add.reduceat(np.where(there, values, np.float32(0)), starts, axis=1, dtype=np.float64)
        counts = np.add.reduceat(there, starts, axis=1, dtype=np.int64)
        means = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        self._times.append((numbers[starts] + 0.5) * self._width)
        self._means.append(means.astype(np.float32))
