"""Long sessions in a few thousand rows: means over equal intervals of time, where there were rows at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kernel_monitor.store.charts import SLOTS

from .format import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_monitor.store import Schema

    from .decode import Floats
    from .row_table import RowTable

INTERVAL = "sample/interval"
_LONGEST_S = 60.0  # a row covers no more
_DRAWN_CELLS = 64 << 20
"""Cells of the heatmaps that the rows of a snapshot may take: their tiles are whole, however few rows are in one."""
MOST_SLOTS = 2_000_000  # intervals that the rows of a snapshot may cover together


class Bins:
    """Takes rows in the order of their times, and gives the means of each bin [k·width, (k + 1)·width) s with some."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._times: list[npt.NDArray[np.float64]] = []
        self._means: list[npt.NDArray[np.float32]] = []
        # The rows of the newest bin, which the next rows may belong to as well.
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


def bin_width(first: float, last: float, interval: float, rows: int) -> float:
    """Seconds of a bin so that `first` to `last` need at most `rows`: whole intervals."""
    return interval * max(1, math.ceil((last - first) / max(1, rows - 1) / interval))


def bin_seconds(table: RowTable, interval: float, max_rows: int, one_in: int) -> float:
    """Seconds of the bins: `max_rows` are enough, and each has rows even where blocks were left out."""
    runs = table.stored(HOST)
    bin_s = bin_width(runs[0].first, max(run.last for run in runs), interval, max_rows)
    if one_in == 1 or len(runs) < 2:
        return bin_s
    apart = float(np.median(np.diff([run.first for run in runs])))
    return max(bin_s, interval * math.ceil(apart / interval))


def binned(table: RowTable, names: Sequence[str], bin_s: float) -> tuple[npt.NDArray[np.float64], Floats]:
    """All rows as means over bins of `bin_s` seconds: middles[bins], values[series, bins], NaN where nothing is."""
    others = table.columns(names)
    beside = {place for places in others.values() for place in places}
    of_host = [place for place in range(len(names)) if place not in beside]
    middles, means = _means(table, HOST, [names[place] for place in of_host], bin_s)
    out = np.full((len(names), len(middles)), np.nan, dtype=np.float32)
    if len(middles) == 0:  # no block can be read
        return middles, out
    out[of_host] = means
    for kind, places in others.items():
        moments, means = _means(table, kind, [names[place] for place in places], bin_s)
        _, here, there = np.intersect1d(middles, moments, assume_unique=True, return_indices=True)
        if len(here):
            out[np.array(places)[:, None], here] = means[:, there]
    if INTERVAL in names:
        interval = out[names.index(INTERVAL)]
        np.clip(interval, bin_s, max(bin_s, _LONGEST_S), out=interval)  # a bin's row lasts until the next bin
    return middles, out


def _means(
    table: RowTable, kind: str, names: Sequence[str], bin_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    bins = Bins(bin_s)
    for times, values in table.blocks(kind, names):
        bins.add(times, values)
    return bins.result()


def drawable(schema: Schema, times: npt.NDArray[np.float64], values: Floats) -> bool:
    """Whether charts of these rows stay small: not so where rows are far apart, or claim to cover years."""
    tiles = len(np.unique(np.floor(times / schema.interval / SLOTS))) * SLOTS
    rows = len(schema.cpus) + 5 * len(schema.gpus) + sum(len(node.cores) for node in schema.nodes)
    if tiles * rows > _DRAWN_CELLS:
        return False
    if INTERVAL not in schema.columns:
        return True
    covered = float(np.nansum(values[schema.columns[INTERVAL]], dtype=np.float64))
    return covered / schema.interval <= MOST_SLOTS
