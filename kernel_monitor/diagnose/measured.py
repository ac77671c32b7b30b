"""What a stretch of time measured: aggregates per frame, and a loader's deliveries with their counts.

NumPy only; the kernel's reader thread runs this once a second while training goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .limits import allowed_cores

if TYPE_CHECKING:
    from ..store import Schema
    from .table import Table

Floats = npt.NDArray[np.float64]

IDLE_S = 3.0
"""A loader that delivers nothing for longer than this (and for longer than `PAUSE_STEPS`) is not in use."""
PAUSE_STEPS = 5
"""A loader that delivers nothing for so many steps while another one does (an evaluation) is not in use, either."""


@dataclass(frozen=True)
class Measured:
    """One stretch, counted only while the loader was delivering.

    Every array has one value for each frame that has one (no NaN), in %, or ms where said.

    Attributes:
        start, end: the stretch's limits, in seconds since the session began.
        seconds: how long the loader was delivering in it.
        samples: how many samples it delivered in those seconds.
        cpu, iowait: mean of the logical cores that this process may use.
        gpu, gpu_memory: mean of the GPUs; empty without one.
        memory: host memory in use.
        wait, step: ms, the mean of the steps that ended in the frame.
        per_second: samples delivered in each whole second; empty without a loader.
        mean_wait, mean_step: ms, over all steps (frames weighted by what they delivered); NaN without a step.
    """

    start: float
    end: float
    seconds: float
    samples: float
    cpu: Floats
    iowait: Floats
    gpu: Floats
    gpu_memory: Floats
    memory: Floats
    wait: Floats
    step: Floats
    per_second: Floats
    mean_wait: float
    mean_step: float

    @property
    def rate(self) -> float:
        """Samples per second really delivered; NaN when no time was counted."""
        return self.samples / self.seconds if self.seconds > 0 else float("nan")


def measure(table: Table, loader: str | None, start: float, end: float) -> Measured:
    """Aggregate the frames in `(start, end]`.

    Args:
        table: rows, oldest first.
        loader: id of the loader whose deliveries are counted and whose pauses are left out; None for all of the time.
        start, end: seconds since the session began.
    """
    schema = table.schema
    first, last = (int(k) for k in np.searchsorted(table.time, [start, end], side="right"))
    time = table.time[first:last]
    values = table.values[first:last]
    # A frame stands for the time since the frame before it, across a gap too: that is what its rates are over.
    before = table.time[first - 1] if first > 0 else (time[0] - schema.interval if len(time) else 0.0)
    window = np.diff(time, prepend=before)
    images = _column(schema, values, f"loader/{loader}/images")
    wait = _column(schema, values, f"loader/{loader}/wait")
    step = _column(schema, values, f"loader/{loader}/step")
    if loader is not None:
        used = delivering(time, images, step, longest_interval(schema, values), elsewhere(schema, values, loader))
        time, values, window = time[used], values[used], window[used]
        images, wait, step = images[used], wait[used], step[used]
    delivered = np.where(np.isfinite(images), images, 0.0) * window
    groups = _groups(schema)
    return Measured(
        start=start,
        end=end,
        seconds=float(window.sum()),
        samples=float(delivered.sum()),
        cpu=_present(_across(values, groups["busy"])),
        iowait=_present(_across(values, groups["iowait"])),
        gpu=_present(_across(values, groups["utilisation"])),
        gpu_memory=_present(_across(values, groups["memory"])),
        memory=_present(_column(schema, values, "memory/percent")),
        wait=_present(wait),
        step=_present(step),
        per_second=per_second(time, delivered, window) if np.isfinite(images).any() else np.empty(0),
        mean_wait=_weighted(wait, delivered),
        mean_step=_weighted(step, delivered),
    )


def longest_interval(schema: Schema, values: npt.NDArray[np.float32]) -> float:
    """The longest interval between rows that was set in these, in seconds."""
    told = _present(_column(schema, values, "sample/interval"))
    return float(told.max()) if len(told) else schema.interval


def elsewhere(schema: Schema, values: npt.NDArray[np.float32], loader: str) -> npt.NDArray[np.bool_]:
    """In which frames a loader delivered that is another one."""
    found = np.zeros(len(values), dtype=bool)
    for one in schema.loaders:
        if one.id != loader:
            found |= _column(schema, values, f"loader/{one.id}/images") > 0
    return found


def delivering(
    time: Floats, images: Floats, step: Floats, interval: float, others: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which frames lie between two deliveries that are not a pause apart.

    The frame of a stretch's first delivery is left out: its samples were made before the stretch.

    Args:
        time: of the frames, s.
        images, step: what the loader delivered in them.
        interval: the longest between two frames, s.
        others: another loader delivered in them.
    """
    active = np.flatnonzero((images > 0) | np.isfinite(step))
    used = np.zeros(len(time), dtype=bool)
    if len(active) < 2:
        return used
    steps = 1e-3 * step[active][np.isfinite(step[active])]
    # Rows that are far apart hold a delivery each, however fast the loader is.
    alone = max(IDLE_S, PAUSE_STEPS * float(np.median(steps)) if len(steps) else 0.0, 1.5 * interval)
    # The mean: batches may come in bursts, and one loop may have two loaders.
    beside = min(alone, max(PAUSE_STEPS * float(steps.mean()), 1.5 * interval)) if len(steps) else alone
    before = np.concatenate([[0], np.cumsum(others)])
    theirs = before[active[1:]] > before[active[:-1] + 1]  # in the frames between two deliveries
    together = np.diff(time[active]) <= np.where(theirs, beside, alone)
    following = np.searchsorted(active, np.arange(len(time)), side="left")
    inside = (following > 0) & (following < len(active))
    used[inside] = together[following[inside] - 1]
    return used


def in_steps(steps: npt.NDArray[Any], time: Floats, window: Floats) -> npt.NDArray[np.bool_]:
    """Which frames (at `time`, of the `window` before it, s) share some of their time with one of a loader's steps."""
    place = np.searchsorted(steps["end"], time - window, side="right")
    at = steps[place.clip(max=len(steps) - 1)]
    found: npt.NDArray[np.bool_] = (place < len(steps)) & (at["end"] - at["step"] < time)
    return found


def _groups(schema: Schema) -> dict[str, list[int]]:
    """Columns by what they say of a core or of a GPU."""
    groups: dict[str, list[int]] = {"busy": [], "iowait": [], "utilisation": [], "memory": []}
    columns = schema.columns
    for name, numbers, parts in (
        ("cpu", sorted(allowed_cores(schema)), ("busy", "iowait")),
        ("gpu", [gpu.index for gpu in schema.gpus], ("utilisation", "memory")),
    ):
        for part in parts:
            found = (columns.get(f"{name}/{number}/{part}") for number in numbers)
            groups[part] = [column for column in found if column is not None]
    return groups


def _column(schema: Schema, values: npt.NDArray[np.float32], name: str) -> Floats:
    column = schema.columns.get(name)
    if column is None:
        return np.full(len(values), np.nan)
    return values[:, column].astype(np.float64)


def _across(values: npt.NDArray[np.float32], columns: list[int]) -> Floats:
    """Mean of the present values of each row; NaN where there is none."""
    chosen = values[:, columns].astype(np.float64)
    present = np.isfinite(chosen)
    counts = present.sum(axis=1)
    sums = np.where(present, chosen, 0.0).sum(axis=1)
    mean: Floats = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return mean


def _present(values: Floats) -> Floats:
    present: Floats = values[np.isfinite(values)]
    return present


def _weighted(values: Floats, weights: Floats) -> float:
    present = np.isfinite(values)
    if not present.any():
        return float("nan")
    total = weights[present].sum()
    if total <= 0:
        return float(values[present].mean())
    return float((values[present] * weights[present]).sum() / total)


def per_second(time: Floats, delivered: Floats, window: Floats) -> Floats:
    """Deliveries of each whole second that was counted for at least nine tenths."""
    if len(time) == 0:
        return np.empty(0)
    seconds = np.floor(time).astype(np.int64)
    seconds -= seconds[0]
    counted = np.bincount(seconds, weights=window)
    sums = np.bincount(seconds, weights=delivered)
    whole = counted >= 0.9
    rates: Floats = sums[whole] / counted[whole]
    return rates
