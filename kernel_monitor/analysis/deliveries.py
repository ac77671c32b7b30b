"""In which rows a loader was delivering, from what the rows hold of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
IDLE_S = 3.0  # a loader that delivers nothing for longer than this (and for longer than `IDLE_STEPS`) is not in use
IDLE_STEPS = 5
"""A loader that delivers nothing for so many steps while another one does (an evaluation) is not in use, either."""


def delivering(
    time: Floats, images: Floats, step: Floats, interval: float, others: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which rows lie between two deliveries that follow each other without the loader being idle.

    The row of the first delivery is left out: its samples were made before.

    Args:
        time: of the rows, s.
        images, step: what the loader delivered in them: images/s, and the mean step in ms.
        interval: the longest between two rows, s.
        others: another loader delivered in them.
    """
    active = np.flatnonzero((images > 0) | np.isfinite(step))
    used = np.zeros(len(time), dtype=bool)
    if len(active) < 2:
        return used
    steps = 1e-3 * step[active][np.isfinite(step[active])]
    # Rows that are far apart hold a delivery each, however fast the loader is.
    alone = max(IDLE_S, IDLE_STEPS * float(np.median(steps)) if len(steps) else 0.0, 1.5 * interval)
    # The mean: batches may come in bursts, and one loop may have two loaders.
    beside = min(alone, max(IDLE_STEPS * float(steps.mean()), 1.5 * interval)) if len(steps) else alone
    before = np.concatenate([[0], np.cumsum(others)])
    theirs = before[active[1:]] > before[active[:-1] + 1]  # in the rows between two deliveries
    together = np.diff(time[active]) <= np.where(theirs, beside, alone)
    following = np.searchsorted(active, np.arange(len(time)), side="left")
    inside = (following > 0) & (following < len(active))
    used[inside] = together[following[inside] - 1]
    return used


def in_steps(steps: npt.NDArray[Any], time: Floats, window: Floats) -> npt.NDArray[np.bool_]:
    """Which rows (at `time`, of the `window` before it, s) share some of their time with one of a loader's steps."""
    place = np.searchsorted(steps["end"], time - window, side="right")
    step = steps[place.clip(max=len(steps) - 1)]
    found: npt.NDArray[np.bool_] = (place < len(steps)) & (step["end"] - step["step"] < time)
    return found


def per_second(time: Floats, delivered: Floats, window: Floats) -> Floats:
    """Deliveries of each whole second that was counted for at least nine tenths.

    Args:
        time, delivered, window: of the rows that count: session s, samples, s.
    """
    if len(time) == 0:
        return np.empty(0)
    seconds = np.floor(time).astype(np.int64)
    seconds -= seconds[0]
    counted = np.bincount(seconds, weights=window)
    sums = np.bincount(seconds, weights=delivered)
    whole = counted >= 0.9
    rates: Floats = sums[whole] / counted[whole]
    return rates
