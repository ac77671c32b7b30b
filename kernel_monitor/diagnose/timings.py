"""The steps of a stretch as arrays, and the shares of their time by part. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..steps.records import ON_DEVICE, PHASES, PROFILED, WARM_UP

if TYPE_CHECKING:
    from .measured import Floats
    from .table import Table

PAUSE_S = 3.0
"""A step whose own work takes longer than this, and than five of its kind, is a pause: an evaluation, a checkpoint."""
BLOCKS, BLOCK_STEPS = 20, 5
"""The spread of a share is taken over so many runs of neighbouring steps, of so many steps at least."""


@dataclass(frozen=True)
class Timings:
    """Steps in the order of their ends, without warm-up, profiled steps and pauses; durations in s.

    Attributes:
        end: session s.
        wait, step: float64[n].
        phases: float64[n, 4], `PHASES`; NaN: not measured.
        on_device: the phases are times of the GPU, which overlap with the host's wait.
        weights: steps that each entry stands for; above 1 where only means of frames are known.
    """

    end: Floats
    wait: Floats
    step: Floats
    phases: Floats
    on_device: bool
    weights: Floats

    def __len__(self) -> int:
        return len(self.end)

    @property
    def steps(self) -> int:
        """Steps, the entries' weights together."""
        return round(float(self.weights.sum()))

    @property
    def phased(self) -> npt.NDArray[np.bool_]:
        """bool[n], which steps have phases."""
        return np.asarray(np.isfinite(self.phases).any(axis=1))

    def part(self, chosen: npt.NDArray[np.bool_]) -> Timings:
        """Those of `chosen`, bool[n]."""
        return Timings(
            self.end[chosen],
            self.wait[chosen],
            self.step[chosen],
            self.phases[chosen],
            self.on_device,
            self.weights[chosen],
        )


def of_steps(rows: npt.NDArray[Any]) -> Timings:
    """From `store.steps.STEP` rows, as `StepTable.of` gives them."""
    wait, step = rows["wait"].astype(np.float64), rows["step"].astype(np.float64)
    used = (rows["flags"] & (WARM_UP | PROFILED) == 0) & np.isfinite(wait) & np.isfinite(step) & (step > 0)
    own = step - wait
    if used.any():
        used &= own <= max(PAUSE_S, 5 * float(np.median(own[used])))
    kept = rows[used]
    phases = np.stack([kept[name] for name in PHASES], axis=1).astype(np.float64)
    device = kept["flags"] & ON_DEVICE != 0
    if device.any():
        # On a GPU only its own times are compared with each other.
        phases[~device] = np.nan
    return Timings(
        kept["end"].astype(np.float64), wait[used], step[used], phases, bool(device.any()), np.ones(len(kept))
    )


def of_frames(table: Table, loader: str, start: float, end: float) -> Timings:
    """From the series, for sessions that kept no steps: each frame's means, for the steps that ended in it."""
    low, high = np.searchsorted(table.time, [start, end], side="right")
    time = table.time[low:high]

    def series(part: str) -> Floats:
        column = table.schema.columns.get(f"loader/{loader}/{part}")
        values = np.full(len(time), np.nan) if column is None else table.values[low:high, column]
        return np.asarray(values, dtype=np.float64)

    wait, step = series("wait") / 1e3, series("step") / 1e3
    used = np.isfinite(wait) & np.isfinite(step) & (step > 0)
    before = table.time[low - 1] if low else (time[0] - table.schema.interval if len(time) else 0.0)
    window = np.diff(time, prepend=before)
    wait, step = wait[used], step[used]
    return Timings(
        time[used],
        wait,
        step,
        np.full((len(wait), len(PHASES)), np.nan),
        on_device=False,
        weights=np.maximum(1.0, np.round(window[used] / step)),
    )


@dataclass(frozen=True)
class Share:
    """A part's share of the step time, 0 to 1, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Shares:
    """What the steps' time is made of.

    Attributes:
        wait: for data, as far as it holds the loop up: on a GPU, waiting that is hidden behind queued work is not
            counted. `parts`: `copy`, `compute`, `other`; empty without phases.
        blocks: float64[k, 1 + parts], the same of each of k runs of neighbouring steps, in the order of time.
        seconds: float64[k], how long each took.
        missing: names of phases that no step has.
    """

    wait: Share
    parts: dict[str, Share]
    blocks: Floats
    seconds: Floats
    missing: tuple[str, ...] = field(default=PHASES)


def shares(timings: Timings, shortest: int = BLOCK_STEPS) -> Shares:
    """The shares of all steps that are phased, or of all steps where none is.

    The wait counts as `min(wait, step − device time)` of each block where phases are of the device: without the wait
    the loop would take `max(step − wait, device time)` (host and device work side by side).

    Args:
        timings: at least one step.
        shortest: the fewest steps in a block: longer than the rhythm in which workers deliver.
    """
    phased = timings.phased
    has_phases = bool(phased.sum() >= max(1, len(timings) // 4))
    used = timings.part(phased) if has_phases else timings
    count = max(min(BLOCKS, len(used) // shortest), min(len(used), 2))
    edges = np.linspace(0, len(used), count + 1).astype(int)[:-1]

    def sums(values: Floats) -> Floats:
        added: Floats = np.add.reduceat(values * used.weights, edges)
        return added

    wait, step = sums(used.wait), sums(used.step)
    if not has_phases:
        return Shares(_ratio(wait, step), {}, (wait / step)[:, None], step)
    columns = {name: sums(np.nan_to_num(used.phases[:, place])) for place, name in enumerate(PHASES)}
    work = sum(columns.values(), np.zeros(count))
    if timings.on_device:
        total_idle = max(0.0, float(step.sum() - work.sum()))
        # The queue carries work from block to block: what is idle is known of the whole, each block has its part.
        exposed = np.minimum(wait, np.maximum(0.0, step - work))
        most = min(float(wait.sum()), total_idle)
        exposed = exposed * (most / exposed.sum()) if exposed.sum() > 0 else exposed
        wait = exposed
    compute = columns["forward"] + columns["backward"] + columns["optimizer"]
    other = np.maximum(0.0, step - wait - work)
    parts = {"copy": columns["copy"], "compute": compute, "other": other}
    blocks = np.stack([wait, *parts.values()], axis=1) / step[:, None]
    missing = tuple(name for place, name in enumerate(PHASES) if not np.isfinite(used.phases[:, place]).any())
    return Shares(
        _ratio(wait, step), {name: _ratio(values, step) for name, values in parts.items()}, blocks, step, missing
    )


def _ratio(part: Floats, whole: Floats) -> Share:
    """A ratio of sums over blocks, with the interval of a ratio estimator.

    Source: W. G. Cochran, Sampling Techniques, 3rd ed., section 6.4; Student's t for 95 % by 1.96 + 3.27 / (k − 1),
    which is within 2 % of the tables from k = 4 on.
    """
    k, value = len(part), float(part.sum() / whole.sum())
    if k < 2:
        return Share(value, 0.0, 1.0)
    rest = part - value * whole
    error = float(np.sqrt((rest**2).sum() / (k * (k - 1)))) / float(whole.mean())
    half = (1.96 + 3.27 / (k - 1)) * error
    return Share(value, max(0.0, value - half), min(1.0, value + half))
