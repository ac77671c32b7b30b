"""Patterns in step times that repeat after a few steps, such as one long step after each short one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .frames import Floats, Places

LONGEST = 8  # the longest period that is looked for, in steps
CLIPPED = 2.0  # %: so many of the shortest and of the longest steps are taken to be as short or long as the next
AS_GOOD = 0.05
"""A shorter period that explains less by at most this is taken: every multiple of a period explains as much as it."""
Part = TypeVar("Part")


@dataclass(frozen=True)
class Period:
    """A pattern of a few steps, such as one long step after each short one."""

    steps: int  # its length
    means: tuple[float, ...]  # of the step times at each place of the pattern, in the unit of the times
    effect: float  # how far the longest place lies above the shortest, without drift, as a share of the mean of `means`
    explained: float  # share of the variance that the place in the pattern explains, 0 to 1

    @property
    def swing(self) -> float:
        """How far the longest place lies above the shortest, in the unit of the times."""
        return self.effect * sum(self.means) / len(self.means)

    @property
    def words(self) -> str:
        """The means, one after the other, for times in ms."""
        return " / ".join(f"{mean:,.1f}" if mean < 100 else f"{mean:,.0f}" for mean in self.means) + " ms"


def strongest(times: Floats, batches: Places, numbers: Places | None = None) -> Period | None:
    """The period of 2 to 8 steps that explains most of how the times vary; None where they do not, or are too few.

    The times are clipped at their 2nd and 98th percentile, freed of drift by the moving mean over a whole period (which
    leaves a pattern of that period as it is), and folded; explained is the variance between the places over all of it
    (eta squared). White noise of n steps explains (period - 1) / (n - 1) of itself on average. Places are counted
    through all steps (by their `numbers`, where some between them are left out), and by the batches' numbers in their
    epochs (`batches`).
    """
    clipped = np.clip(times, *np.percentile(times, (CLIPPED, 100 - CLIPPED))) if len(times) else times
    counters = _counters(batches, numbers)
    folded = (_folded(clipped, counter % steps, steps) for counter in counters for steps in range(2, LONGEST + 1))
    found = [period for period in folded if period is not None]
    best = max((period.explained for period in found), default=0.0)
    good = [period for period in found if period.explained >= best - AS_GOOD]
    return min(good, key=lambda period: period.steps, default=None)


def following(
    period: Period, parts: Mapping[Part, Floats], batches: Places, numbers: Places | None = None
) -> Part | None:
    """The part of the steps that follows a pattern of them most; None where none makes up half of its swing.

    `parts` are times of the same steps in the same unit, NaN: not measured.
    """
    swings = {}
    for part, times in parts.items():
        known = np.nan_to_num(times)
        found = [_folded(known, counter % period.steps, period.steps) for counter in _counters(batches, numbers)]
        swings[part] = max((each.swing for each in found if each is not None), default=0.0)
    most = max(swings, key=lambda part: swings[part], default=None)
    return most if most is not None and swings[most] >= period.swing / 2 else None


def _counters(batches: Places, numbers: Places | None) -> list[Places]:
    """Counts of the steps: through all of them, and by the batches' numbers, if these begin anew."""
    through = np.arange(len(batches)) if numbers is None else numbers
    return [through, *([batches] if (np.diff(batches) < 0).any() else [])]


def _folded(times: Floats, places: Places, steps: int) -> Period | None:
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
        means=tuple(means.tolist()),
        effect=float((between.max() - between.min()) / means.mean()),
        explained=float((counts * between**2).sum()) / whole,
    )
