"""Patterns in step times that come again every few steps, such as one long step after one short one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..frames import Floats, Places

LONGEST = 8
"""The longest period that is looked for, in steps."""
CLIPPED = 2.0
"""%: so many of the shortest and of the longest steps are taken to be as short or long as the next."""
AS_GOOD = 0.05
"""A shorter period that explains less by at most this is taken: every multiple of a period explains as much as it."""


@dataclass(frozen=True)
class Period:
    """A pattern.

    Attributes:
        steps: its length.
        means: of the step times at each place of the pattern, in the unit of the times.
        effect: how far the longest place lies above the shortest, without drift, as a share of the mean of `means`.
        explained: share of the variance that the place in the pattern explains, 0 to 1.
        by_batch: places are counted by the batches' numbers in their epochs, else through all steps.
    """

    steps: int
    means: tuple[float, ...]
    effect: float
    explained: float
    by_batch: bool


def strongest(times: Floats, batches: Places) -> Period | None:
    """The period of 2 to 8 steps that explains most of how the times vary; None where they do not, or are too few.

    The times are clipped at their 2nd and 98th percentile, freed of drift by the moving mean over a whole period (which
    leaves a pattern of that period as it is), and folded; explained is the variance between the places over all of it
    (eta squared). White noise of n steps explains (period - 1) / (n - 1) of itself on average.

    Args:
        times: of consecutive steps.
        batches: their numbers in their epochs.
    """
    clipped = np.clip(times, *np.percentile(times, (CLIPPED, 100 - CLIPPED))) if len(times) else times
    found: list[Period] = []
    counters = [(np.arange(len(times)), False)]
    if (np.diff(batches) < 0).any():
        counters.append((batches, True))
    for numbers, by_batch in counters:
        for steps in range(2, LONGEST + 1):
            made = _folded(clipped, numbers % steps, steps, by_batch=by_batch)
            if made is not None:
                found.append(made)
    best = max((one.explained for one in found), default=0.0)
    return next((one for one in sorted(found, key=lambda one: one.steps) if one.explained >= best - AS_GOOD), None)


def _folded(times: Floats, places: Places, steps: int, *, by_batch: bool) -> Period | None:
    if len(times) < 3 * steps:
        return None
    smooth = np.convolve(times, np.full(steps, 1 / steps), mode="valid")
    middle = slice(steps // 2, steps // 2 + len(smooth))
    rest, places, times = times[middle] - smooth, places[middle], times[middle]
    counts = np.bincount(places, minlength=steps)
    whole = float(((rest - rest.mean()) ** 2).sum())
    # What is left of equal times is rounding, in which there are patterns, too.
    if (counts == 0).any() or whole <= len(rest) * (1e-6 * float(np.abs(times).mean())) ** 2:
        return None
    between = np.bincount(places, weights=rest, minlength=steps) / counts - rest.mean()
    means = np.bincount(places, weights=times, minlength=steps) / counts
    return Period(
        steps=steps,
        means=tuple(float(one) for one in means),
        effect=float((between.max() - between.min()) / means.mean()),
        explained=float((counts * between**2).sum()) / whole,
        by_batch=by_batch,
    )
