"""A session's rows as means over equal stretches of time, and whether the rows themselves can be drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .bins import Bins, width
from .format import HOST, LOADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kernel_monitor.store import Schema

    from .decode import Floats
    from .table import Table

INTERVAL = "sample/interval"
_LONGEST_S = 60.0  # a row covers no more
_DRAWN_CELLS = 64 << 20
"""Cells of the heatmaps that the rows of a snapshot may take: their tiles are whole, however few rows are in one."""
_TILE_SLOTS = 60  # of a heatmap (`views.heatmap.SLOTS`)
_SLOTS = 2_000_000
"""Intervals that the rows of a snapshot may cover together."""


def bin_seconds(table: Table, interval: float, max_rows: int, one_in: int) -> float:
    """Seconds of the bins: `max_rows` are enough, and each has something even where blocks were left out."""
    runs = table.stored(HOST)
    bin_s = width(runs[0].first, max(run.last for run in runs), interval, max_rows)
    if one_in == 1 or len(runs) < 2:
        return bin_s
    apart = float(np.median(np.diff([run.first for run in runs])))
    return max(bin_s, interval * math.ceil(apart / interval))


def binned(table: Table, names: Sequence[str], bin_s: float) -> tuple[npt.NDArray[np.float64], Floats]:
    """All rows as means over bins of `bin_s` seconds: their middles, and values[series, bins], NaN where nothing is."""
    host = [place for place, name in enumerate(names) if not name.startswith("loader/")]
    rest = [place for place, name in enumerate(names) if name.startswith("loader/")]
    bins = Bins(bin_s)
    for times, values in table.blocks(HOST, [names[place] for place in host]):
        bins.add(times, values)
    middles, means = bins.result()
    if len(middles) == 0:  # no block can be read
        return middles, np.empty((len(names), 0), dtype=np.float32)
    out = np.full((len(names), len(middles)), np.nan, dtype=np.float32)
    out[host] = means
    if rest:
        bins = Bins(bin_s)
        for times, values in table.blocks(LOADERS, [names[place] for place in rest]):
            bins.add(times, values)
        moments, means = bins.result()
        if len(moments) == 0:
            return middles, out
        _, here, there = np.intersect1d(middles, moments, assume_unique=True, return_indices=True)
        out[np.array(rest)[:, None], here] = means[:, there]
    if INTERVAL in names:
        interval = out[names.index(INTERVAL)]
        np.clip(interval, bin_s, max(bin_s, _LONGEST_S), out=interval)  # of a bin the next row is a bin away
    return middles, out


def drawable(schema: Schema, times: npt.NDArray[np.float64], values: Floats) -> bool:
    """Whether charts of these rows stay small: not so where rows are far apart, or say that they cover years."""
    tiles = len(np.unique(np.floor(times / schema.interval / _TILE_SLOTS))) * _TILE_SLOTS
    if tiles * (len(schema.cpus) + 5 * len(schema.gpus)) > _DRAWN_CELLS:
        return False
    if INTERVAL not in schema.columns:
        return True
    covered = float(np.nansum(values[schema.columns[INTERVAL]], dtype=np.float64))
    return covered / schema.interval <= _SLOTS
