"""How values are spread: percentiles, histograms of shares of time, and how far two histograms lie apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .model import Quantiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

BINS = 50
"""Of histograms of 0 to 100 %: each 2 % wide, 100 % in the last. (SageMaker Debugger has 49 of that width, and none for
what is above 98 %, where a busy GPU spends its time.)"""


def quantiles(values: npt.ArrayLike) -> Quantiles:
    """The spread of the finite ones among `values`, by `numpy.percentile`'s linear interpolation."""
    given = np.asarray(values, dtype=np.float64).ravel()
    present = given[np.isfinite(given)]
    if len(present) == 0:
        return Quantiles(0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)
    low, p50, p90, p95, p99, high = (float(one) for one in np.percentile(present, (0, 50, 90, 95, 99, 100)))
    return Quantiles(len(present), low, p50, p90, p95, p99, high)


def histogram(values: npt.ArrayLike) -> tuple[float, ...]:
    """Which share of the finite ones among `values` (%) lies in each of 50 bins of 2 %; empty where there are none.

    Bin k is [2k, 2k + 2), the last one holds 100 too; what lies outside of 0 to 100 counts in the bin at that end.
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    present = given[np.isfinite(given)]
    if len(present) == 0:
        return ()
    places = np.clip(np.floor(present * (BINS / 100)), 0, BINS - 1).astype(np.intp)
    return tuple(float(share) for share in np.bincount(places, minlength=BINS) / len(present))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """How far two histograms lie apart: half the sum of the absolute differences of their shares.

    That is the total variation distance: the least share of the samples that would have to lie elsewhere for the two to
    be equal. 0: equal; 1: no bin in common. It does not grow further with how far apart the bins are.

    Returns:
        NaN where one of them is empty.

    Raises:
        ValueError: they have different numbers of bins.
    """
    if not a or not b:
        return math.nan
    if len(a) != len(b):
        raise ValueError(f"histograms of {len(a)} and {len(b)} bins cannot be compared")
    return float(0.5 * np.abs(np.subtract(a, b)).sum())
