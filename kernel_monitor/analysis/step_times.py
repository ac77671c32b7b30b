"""The times of the steps that count as arrays (`Timings`), and their shares by part (`shares`). NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..steps.measured_step import ON_DEVICE, PHASES
from .counted_steps import counted
from .frames import Floats, Frames
from .results import Segment

BLOCKS, BLOCK_STEPS = 20, 5
"""The spread of a share is taken over so many runs of neighbouring steps, of so many steps at least."""


@dataclass(frozen=True)
class Timings:
    """The steps that count (`counted_steps`) and whose wait is known, in the order of their ends; durations in s."""

    wait: Floats  # wait, step: float64[n]
    step: Floats
    phases: Floats  # float64[n, 4], `PHASES`; NaN: not measured
    on_device: bool  # the phases are times of the GPU, which overlap with the host's wait
    weights: Floats  # steps that each entry stands for; above 1 where only means of frames are known

    def __len__(self) -> int:
        return len(self.step)

    @property
    def steps(self) -> int:
        """Steps, the entries' weights together."""
        return round(float(self.weights.sum()))

    @property
    def mean(self) -> float:
        """The mean step, s."""
        return float(np.average(self.step, weights=self.weights))


def of_steps(rows: npt.NDArray[Any]) -> Timings:
    """From `store.steps.STEP` rows, as `StepTable.of` gives them."""
    kept = rows[counted(rows) & np.isfinite(rows["wait"]) & np.isfinite(rows["step"])]
    phases = np.stack([kept[name] for name in PHASES], axis=1).astype(np.float64)
    device = kept["flags"] & ON_DEVICE != 0
    if device.any():
        # On a GPU only its own times are compared with each other.
        phases[~device] = np.nan
    wait, step = (kept[name].astype(np.float64) for name in ("wait", "step"))
    return Timings(wait, step, phases, bool(device.any()), np.ones(len(kept)))


def of_frames(frames: Frames, loader: str, start: float, end: float) -> Timings:
    """From the series, for sessions that kept no steps: each row's means, for the steps that ended in it."""
    low, high = np.searchsorted(frames.time, [start, end], side="right")
    wait, step = (frames.series(f"loader/{loader}/{part}")[low:high] / 1e3 for part in ("wait", "step"))
    used = np.isfinite(wait) & np.isfinite(step) & (step > 0)
    wait, step, window = wait[used], step[used], frames.window[low:high][used]
    phases = np.full((len(wait), len(PHASES)), np.nan)
    weights = np.maximum(1.0, np.round(window / step))
    return Timings(wait, step, phases, on_device=False, weights=weights)


def block_steps(segment: Segment) -> int:
    """Workers deliver in bursts: a block of steps must hold some of them."""
    return max(BLOCK_STEPS, 2 * segment.knobs.get("workers", 0))


@dataclass(frozen=True)
class Share:
    """A part's share of the step time, 0 to 1, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Shares:
    """What the steps' time is made of."""

    # for data, as far as it holds the loop up: on a GPU, waiting that is hidden behind queued work is not counted.
    # `parts`: `copy`, `compute`, `other`; empty without phases
    wait: Share
    parts: dict[str, Share]
    blocks: Floats  # float64[k, 1 + parts], the same of each of k runs of neighbouring steps, in the order of time
    seconds: Floats  # float64[k], how long each took
    missing: tuple[str, ...] = PHASES  # names of phases that no step has


def shares(timings: Timings, shortest: int = BLOCK_STEPS) -> Shares:
    """The shares of all steps that are phased, or of all steps where hardly any is.

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
    """A ratio of sums over blocks, with the interval of a ratio estimator.

    Source: W. G. Cochran, Sampling Techniques, 3rd ed., section 6.4.
    """
    k, value = len(part), float(part.sum() / whole.sum())
    if k < 2:
        return Share(value, 0.0, 1.0)
    rest = part - value * whole
    error = float(np.sqrt((rest**2).sum() / (k * (k - 1)))) / float(whole.mean())
    half = student(k) * error
    return Share(value, max(0.0, value - half), min(1.0, value + half))


def student(k: int) -> float:
    """Student's t for 95 % of `k` values, within 2 % of the tables from k = 4 on."""
    return 1.96 + 3.27 / (k - 1)
