"""The spread of values: percentiles, histograms of shares of time, and the distance of two histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .results import Quantiles

BINS = 50
"""Of histograms of 0 to 100 %: each 2 % wide, 100 % in the last. (SageMaker Debugger has 49 of that width, and none for
what is above 98 %, where a busy GPU spends its time.)"""


def quantiles(values: npt.ArrayLike) -> Quantiles:
    """The spread of the finite values, by `numpy.percentile`'s linear interpolation."""
    present = finite(values)
    if len(present) == 0:
        return Quantiles(0, *[math.nan] * 6)
    return Quantiles(len(present), *map(float, np.percentile(present, (0, 50, 90, 95, 99, 100))))


def histogram(values: npt.ArrayLike) -> tuple[float, ...]:
    """The share of the finite values (%) in each of 50 bins of 2 %; empty where there are none.

    Bin k is [2k, 2k + 2), the last one holds 100 too; what lies outside of 0 to 100 counts in the bin at that end.
    """
    present = finite(values)
    if len(present) == 0:
        return ()
    places = np.clip(np.floor(present * (BINS / 100)), 0, BINS - 1).astype(np.intp)
    return tuple((np.bincount(places, minlength=BINS) / len(present)).tolist())


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """The total variation distance of two histograms: half the sum of the absolute differences of their shares.

    It is the least share of the samples that would have to lie elsewhere for the two to be equal. 0: equal; 1: no bin
    in common; NaN where one of them is empty. It does not grow further with how far apart the bins are.
    """
    if not a or not b:
        return math.nan
    return float(0.5 * np.abs(np.subtract(a, b)).sum())


def finite(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The finite values, in their order."""
    given = np.asarray(values, dtype=np.float64).ravel()
    return given[np.isfinite(given)]


def weighted_mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Of the finite values; unweighted where the weights are 0, NaN without a value."""
    present = np.isfinite(values)
    if not present.any():
        return math.nan
    return float(np.average(values[present], weights=weights[present] if weights[present].sum() > 0 else None))
