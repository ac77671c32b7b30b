"""The times of the steps that count: their shares by part, their spread, and patterns that repeat. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..steps.measured_step import ON_DEVICE, PHASES
from .frames import Floats, Frames, Places, counted
from .results import Quantiles, Segment

# ---- The times of the steps that count as arrays (`Timings`), and their shares by part (`shares`). NumPy only.

BLOCKS, BLOCK_STEPS = 20, 5
"""The spread of a share is taken over so many runs of neighbouring steps, of so many steps at least."""


@dataclass(frozen=True)
class Timings:
    """The steps that count (`frames.counted`) and whose wait is known, in the order of their ends; durations in s."""

    wait: Floats  # wait, step: float64[n]
    step: Floats
    phases: Floats  # float64[n, 4], `PHASES`; NaN: not measured
    on_device: bool  # the phases are times of the GPU, which overlap with the host's wait
    weights: Floats  # steps that each entry stands for; above 1 where only means of frames are known

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """The number of steps: the sum of the entries' weights."""
        return round(float(self.weights.sum()))

    @property
    def mean(self) -> float:
        """The mean step, s."""
        return float(np.average(self.step, weights=self.weights))


def timings_of_steps(rows: npt.NDArray[Any]) -> Timings:
    """Return the timings of `STEP` rows, as `StepTable.of` gives them."""
    kept = rows[counted(rows) & np.isfinite(rows["wait"]) & np.isfinite(rows["step"])]
    phases = np.stack([kept[name] for name in PHASES], axis=1).astype(np.float64)
    device = kept["flags"] & ON_DEVICE != 0
    if device.any():
        # On a GPU only its own times are compared with each other.
        phases[~device] = np.nan
    wait, step = (kept[name].astype(np.float64) for name in ("wait", "step"))
    return Timings(wait, step, phases, bool(device.any()), np.ones(len(kept)))


def timings_of_frames(frames: Frames, loader: str, start: float, end: float) -> Timings:
    """Return the timings of a session without steps, from each row's means over the steps that ended in it."""
    low, high = np.searchsorted(frames.time, [start, end], side="right")
    wait, step = (frames.series(f"loader/{loader}/{part}")[low:high] / 1e3 for part in ("wait", "step"))
    used = np.isfinite(wait) & np.isfinite(step) & (step > 0)
    wait, step, window = wait[used], step[used], frames.window[low:high][used]
    phases = np.full((len(wait), len(PHASES)), np.nan)
    weights = np.maximum(1.0, np.round(window / step))
    return Timings(wait, step, phases, on_device=False, weights=weights)


def block_steps(segment: Segment) -> int:
    """Return how many steps a block must have to hold several bursts of deliveries by the workers."""
    return max(BLOCK_STEPS, 2 * segment.knobs.get("workers", 0))


@dataclass(frozen=True)
class Share:
    """A part's share of the step time, 0 to 1, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Shares:
    """The shares of the steps' time by part, and their spread."""

    # for data, as far as it holds the loop up: on a GPU, waiting that is hidden behind queued work is not counted.
    # `parts`: `copy`, `compute`, `other`; empty without phases
    wait: Share
    parts: dict[str, Share]
    blocks: Floats  # float64[k, 1 + parts], the same of each of k runs of neighbouring steps, in the order of time
    seconds: Floats  # float64[k], how long each took
    missing: tuple[str, ...] = PHASES  # names of phases that no step has


def shares(timings: Timings, shortest: int = BLOCK_STEPS) -> Shares:
    """Return the shares of all steps that are phased, or of all steps where hardly any is.

    The wait counts as `min(wait, step − device time)` of each block where phases are of the device: without the wait
    the loop would take `max(step − wait, device time)` (host and device work side by side). A block has at least
    `shortest` steps: more than the rhythm in which workers deliver.
    """
    used = np.isfinite(timings.phases).any(axis=1)
    has_phases = bool(used.sum() >= max(1, len(timings) // 4))
    if not has_phases:
        used = np.ones(len(timings), dtype=bool)
    total, weights, phases = int(used.sum()), timings.weights[used], timings.phases[used]
    count = max(min(BLOCKS, total // shortest), min(total, 2))
    edges = np.linspace(0, total, count + 1).astype(int)[:-1]

    def sums(values: Floats) -> Floats:
        added: Floats = np.add.reduceat(values * weights, edges)
        return added

    wait, step = sums(timings.wait[used]), sums(timings.step[used])
    if not has_phases:
        return Shares(_ratio(wait, step), {}, (wait / step)[:, None], step)
    columns = {name: sums(np.nan_to_num(phases[:, place])) for place, name in enumerate(PHASES)}
    work = sum(columns.values(), np.zeros(count))
    if timings.on_device:
        total_idle = max(0.0, float(step.sum() - work.sum()))
        # The queue carries work from block to block: what is idle is known of the whole, each block has its part.
        exposed = np.minimum(wait, np.maximum(0.0, step - work))
        most = min(float(wait.sum()), total_idle)
        wait = exposed * (most / exposed.sum()) if exposed.sum() > 0 else exposed
    compute = columns["forward"] + columns["backward"] + columns["optimizer"]
    other = np.maximum(0.0, step - wait - work)
    parts = {"copy": columns["copy"], "compute": compute, "other": other}
    blocks = np.stack([wait, *parts.values()], axis=1) / step[:, None]
    missing = tuple(name for place, name in enumerate(PHASES) if not np.isfinite(phases[:, place]).any())
    shared = {name: _ratio(values, step) for name, values in parts.items()}
    return Shares(_ratio(wait, step), shared, blocks, step, missing)


def _ratio(part: Floats, whole: Floats) -> Share:
    """Return a ratio of sums over blocks, with the interval of a ratio estimator.

    Source: W. G. Cochran, Sampling Techniques, 3rd ed., section 6.4.
    """
    k, value = len(part), float(part.sum() / whole.sum())
    if k < 2:
        return Share(value, 0.0, 1.0)
    rest = part - value * whole
    error = float(np.sqrt((rest**2).sum() / (k * (k - 1)))) / float(whole.mean())
    half = student_t(k) * error
    return Share(value, max(0.0, value - half), min(1.0, value + half))


def student_t(k: int) -> float:
    """Return Student's t for the 95 % interval of `k` values, within 2 % of the tables from k = 4 on."""
    return 1.96 + 3.27 / (k - 1)


# ---- The spread of values: percentiles, histograms of shares of time, and the distance of two histograms.

BINS = 50
"""Bins of histograms of 0 to 100 %: each 2 % wide, 100 % in the last. (SageMaker Debugger has 49, and none for
what is above 98 %, where a busy GPU spends its time.)"""


def quantiles(values: npt.ArrayLike) -> Quantiles:
    """Return the spread of the finite values, by `numpy.percentile`'s linear interpolation."""
    present = finite(values)
    if len(present) == 0:
        return Quantiles(0, *[math.nan] * 6)
    return Quantiles(len(present), *map(float, np.percentile(present, (0, 50, 90, 95, 99, 100))))


def histogram(values: npt.ArrayLike) -> tuple[float, ...]:
    """Return the share of the finite values (%) in each of 50 bins of 2 %; empty where there are none.

    Bin k is [2k, 2k + 2), the last one holds 100 too; what lies outside of 0 to 100 counts in the bin at that end.
    """
    present = finite(values)
    if len(present) == 0:
        return ()
    places = np.clip(np.floor(present * (BINS / 100)), 0, BINS - 1).astype(np.intp)
    return tuple((np.bincount(places, minlength=BINS) / len(present)).tolist())


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the total variation distance of two histograms: half the sum of the absolute differences of their shares.

    It is the least share of the samples that would have to lie elsewhere for the two to be equal. 0: equal; 1: no bin
    in common; NaN where one of them is empty. It does not grow further with how far apart the bins are.
    """
    if not a or not b:
        return math.nan
    return float(0.5 * np.abs(np.subtract(a, b)).sum())


def finite(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the finite values, in their order."""
    given = np.asarray(values, dtype=np.float64).ravel()
    return given[np.isfinite(given)]


def weighted_mean(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Return the weighted mean of the finite values; unweighted where the weights are 0, NaN without a value."""
    present = np.isfinite(values)
    if not present.any():
        return math.nan
    return float(np.average(values[present], weights=weights[present] if weights[present].sum() > 0 else None))


# ---- Patterns in step times that repeat after a few steps, such as one long step after each short one.

LONGEST = 8  # the longest period that is looked for, in steps
_CLIPPED = 2.0  # %: so many of the shortest and of the longest steps are taken to be as short or long as the next
_AS_GOOD = 0.05
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
        """The difference between the longest and the shortest place, in the unit of the times."""
        return self.effect * sum(self.means) / len(self.means)

    @property
    def words(self) -> str:
        """The means, one after the other, for times in ms."""
        return " / ".join(f"{mean:,.1f}" if mean < 100 else f"{mean:,.0f}" for mean in self.means) + " ms"


def strongest_period(times: Floats, batches: Places, numbers: Places | None = None) -> Period | None:
    """Return the period of 2 to 8 steps that explains most of the times' variance; None if they are equal or too few.

    The times are clipped at their 2nd and 98th percentile, freed of drift by the moving mean over a whole period (which
    leaves a pattern of that period as it is), and folded; explained is the variance between the places over all of it
    (eta squared). White noise of n steps explains (period - 1) / (n - 1) of itself on average. Places are counted
    through all steps (by their `numbers`, where some between them are left out), and by the batches' numbers in their
    epochs (`batches`).
    """
    clipped = np.clip(times, *np.percentile(times, (_CLIPPED, 100 - _CLIPPED))) if len(times) else times
    counters = _counters(batches, numbers)
    folded = (_folded(clipped, counter % steps, steps) for counter in counters for steps in range(2, LONGEST + 1))
    found = [period for period in folded if period is not None]
    best = max((period.explained for period in found), default=0.0)
    good = [period for period in found if period.explained >= best - _AS_GOOD]
    return min(good, key=lambda period: period.steps, default=None)


def part_with_period(
    period: Period, parts: Mapping[Part, Floats], batches: Places, numbers: Places | None = None
) -> Part | None:
    """Return the part of the steps that follows a pattern of them most; None where none makes up half of its swing.

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
    """Return the steps' numbers: through all of them, and by the batches' numbers if these begin anew."""
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
