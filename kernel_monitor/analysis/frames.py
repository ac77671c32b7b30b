"""The rows and steps of a session, or of a part of it, as an analysis reads them: means over cores and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from ..steps.measured_step import PROFILED, WARM_UP
from ..store import Rows, Schema, Snapshot, StepTable

# ---- The steps that count: decided here alone, for verdicts, segments, rules, *Diagnose* and comparisons.

PAUSE_S = 3.0
_PAUSE_STEPS = 5.0


def flagged(steps: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whether each step is a warm-up step or was profiled."""
    found: npt.NDArray[np.bool_] = (steps["flags"] & (WARM_UP | PROFILED)) != 0
    return found


def counted(steps: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whether each of the `STEP`[n] counts; they are one loader's, and of a single segment."""
    whole = steps["step"].astype(np.float64)
    used: npt.NDArray[np.bool_] = ~flagged(steps) & (whole > 0)
    if used.any():
        own_work = whole - np.nan_to_num(steps["wait"].astype(np.float64))
        used &= own_work <= max(PAUSE_S, _PAUSE_STEPS * float(np.median(own_work[used])))
    return used


# ---- The limits of this process on the machine, as the sampler found them: cores, a quota, a limit of memory.


def allowed_cores(schema: Schema) -> frozenset[int]:
    """Return the cores of the schema that this process may use; all of them where nothing is known of a limit."""
    limited = (schema.host.get("limits") or {}).get("cpus")
    return frozenset(schema.cpus if limited is None else set(schema.cpus).intersection(int(core) for core in limited))


def limits_note(schema: Schema) -> str | None:
    """Return the cores that this process may use, in words; None if it may use all."""
    total, allowed = len(schema.cpus), len(allowed_cores(schema))
    quota = (schema.host.get("limits") or {}).get("cpu_quota")
    parts = [f"this process may use {allowed} of {total} cores"] if allowed < total else []
    if quota is not None:
        parts.append(f"quota {quota:g}" if parts else f"quota {quota:g} of {total} cores")
    return ", ".join(parts) or None


def memory_note(schema: Schema) -> str | None:
    """Return the sizes that 100 % of memory stand for, in words."""
    total = schema.host.get("memory_total")
    limit = (schema.host.get("limits") or {}).get("memory")
    parts = [f"host {float(total) / 1e9:,.1f} GB"] if total else []
    if limit is not None:
        parts.append(f"container limit {float(limit) / 1e9:,.1f} GB")
    return ", ".join(parts) or None


def usable_cores(schema: Schema) -> float:
    """Return how many cores this process may use at a time.

    Those allowed, or its quota where that is less; 0: not known.
    """
    quota = (schema.host.get("limits") or {}).get("cpu_quota")
    allowed = float(max(1, len(allowed_cores(schema))))
    return allowed if quota is None else min(allowed, float(quota))


Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Steps = npt.NDArray[Any]  # rows of a `StepTable`
_LAST_STEP_S = 60.0  # steps that end so much later are looked at, too: one of them may have begun before the end
IDLE_S = 3.0  # a loader that delivers nothing for longer than this (and for longer than `IDLE_STEPS`) is not in use
IDLE_STEPS = 5
"""A loader that delivers nothing for so many steps while another one does (an evaluation) is not in use, either."""
P = ParamSpec("P")
Found = TypeVar("Found")


def cached_answer(method: Callable[Concatenate[Frames, P], Found]) -> Callable[Concatenate[Frames, P], Found]:
    """Keep each answer of a method for as long as its frames live."""

    @wraps(method)
    def answer(frames: Frames, /, *args: P.args, **named: P.kwargs) -> Found:
        key = (method.__name__, args, *named.items())
        if key not in frames.answers:
            frames.answers[key] = method(frames, *args, **named)
        found: Found = frames.answers[key]
        return found

    return answer


class Frames:
    """The rows of a table that lie in `(start, end]` (session s); every array has one value for each, NaN: missing.

    `steps` are the loaders'; left out, those of a snapshot, and none of anything else.
    """

    def __init__(
        self, table: Rows, steps: StepTable | None = None, start: float = -np.inf, end: float = np.inf
    ) -> None:
        if steps is None:
            steps = table.steps if isinstance(table, Snapshot) else StepTable()
        low, high = 0, len(table.time)
        if start > -np.inf or end < np.inf:
            low, high = np.searchsorted(table.time, [start, end], side="right")
            first, last = np.searchsorted(steps.rows["end"], [start, end + _LAST_STEP_S], side="right")
            steps = replace(steps, rows=steps.rows[first:last])
        self.schema = table.schema
        self.time = table.time[low:high]  # session s
        self.values = table.values[low:high]
        before = table.time[low - 1 : low] if low else self.time[:1] - table.schema.interval
        # s since the row before, also across a gap: the time that a row stands for
        self.window: Floats = np.diff(self.time, prepend=before)
        self.all_steps = steps  # of all loaders, of this time
        self.answers: dict[Any, Any] = {}

    @cached_answer
    def series(self, name: str) -> Floats:
        """Return one column, float64[rows]; all NaN where there is no such series."""
        column = self.schema.columns.get(name)
        return np.full(len(self.time), np.nan) if column is None else self.values[:, column].astype(np.float64)

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs on which this kernel held memory; all of them where that is not known or true of none."""
        numbers = [gpu.index for gpu in self.schema.gpus]
        used = [number for number in numbers if bool((self.series(f"gpu/{number}/process_memory") > 0).any())]
        return tuple(used or numbers)

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """The cores that this process may use and that were measured, in order."""
        columns = self.schema.columns
        return tuple(core for core in sorted(allowed_cores(self.schema)) if f"cpu/{core}/busy" in columns)

    @cached_answer
    def parts(self, kind: Literal["cpu", "gpu"], part: str) -> npt.NDArray[np.float32]:
        """Return float32[rows, n]: a metric (`busy`, `utilisation`, `memory`, …) of each of `cores` or of `gpus`."""
        columns = self.schema.columns
        names = [f"{kind}/{number}/{part}" for number in (self.cores if kind == "cpu" else self.gpus)]
        if all(name in columns for name in names):
            return self.values[:, [columns[name] for name in names]]
        return np.stack([self.series(name) for name in names], axis=1).astype(np.float32)

    @cached_answer
    def mean(self, kind: Literal["cpu", "gpu"], part: str) -> Floats:
        """Return the mean of `parts` in each row."""
        return _mean(self.parts(kind, part))

    @property
    def cpu(self) -> Floats:
        """The mean load of `cores`, in %."""
        return self.mean("cpu", "busy")

    @cached_property
    def load(self) -> Floats:
        """The load in % of the CPU time that this process may take: of its quota where that binds, else as `cpu`."""
        found: Floats = np.fmax(self.cpu, self.series("container/cpu"))
        return found

    def fresh(self, group: str) -> npt.NDArray[np.bool_]:
        """Return rows that hold a new reading of a group that is read more rarely than rows are taken."""
        age = self.series(f"sample/{group}/age")
        found: npt.NDArray[np.bool_] = ~(age >= self.window)  # NaN: the reading is not known to be old
        return found

    def samples(self, loader: str | None) -> Floats:
        """Return samples that a loader delivered in each row; 0 where it delivered none."""
        images = self.series(f"loader/{loader}/images")
        found: Floats = np.where(np.isfinite(images), images, 0.0) * self.window
        return found

    def steps(self, loader: str, start: float = -np.inf, end: float = np.inf) -> Steps:
        """Return the steps of a loader that ended in `(start, end]`."""
        own, ends = self._own_steps(loader)
        low, high = np.searchsorted(ends, [start, end], side="right")
        found: Steps = own[low:high]
        return found

    @cached_answer
    def _own_steps(self, loader: str) -> tuple[Steps, Floats]:
        own = self.all_steps.of(loader)
        return own, own["end"].copy()  # contiguous, which a search reads faster

    @cached_answer
    def delivery_rows(self, loader: str, start: float = -np.inf, end: float = np.inf) -> Places:
        """Return the places of the rows in `(start, end]` in which a loader delivered steps that count."""
        low, high = np.searchsorted(self.time, [start, end], side="right")
        part = slice(low, high)
        time, window = self.time[part], self.window[part]
        images, step = (self.series(f"loader/{loader}/{name}")[part] for name in ("images", "step"))
        others = np.zeros(len(time), dtype=bool)
        for info in self.schema.loaders:
            if info.id != loader:
                others |= self.series(f"loader/{info.id}/images")[part] > 0
        intervals = self.series("sample/interval")[part]
        interval = float(np.nanmax(intervals)) if np.isfinite(intervals).any() else self.schema.interval
        used = _in_use(time, images, step, interval, others)
        rows = self.steps(loader, start, end + _LAST_STEP_S)
        if len(rows):
            if not self.all_steps.dropped:  # an evaluation between two epochs is in no step
                used &= _in_steps(rows, time, window)
            apart = rows[~counted(rows)]
            if len(apart):
                place = np.searchsorted(apart["end"], time).clip(max=len(apart) - 1)
                began = apart["end"][place] - apart["step"][place]
                used &= ~((time > began) & (time <= apart["end"][place]))
        return int(low) + np.flatnonzero(used)


def _in_use(
    time: Floats, images: Floats, step: Floats, interval: float, others: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which rows (at `time`) lie between two deliveries that follow each other without the loader being idle.

    The row of the first delivery is left out: its samples were made before. The loader delivered `images` (per s) in
    them, with a mean `step` in ms; `interval` is the longest between two rows, s; `others`: another loader delivered.
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


def _in_steps(steps: Steps, time: Floats, window: Floats) -> npt.NDArray[np.bool_]:
    """Return which rows (at `time`, each of the `window` before it, s) overlap with one of a loader's steps."""
    place = np.searchsorted(steps["end"], time - window, side="right")
    step = steps[place.clip(max=len(steps) - 1)]
    found: npt.NDArray[np.bool_] = (place < len(steps)) & (step["end"] - step["step"] < time)
    return found


def loader_names(snapshot: Snapshot) -> dict[str, str]:
    """Return the loaders' names by their ids."""
    names = {info.id: info.name for info in snapshot.schema.loaders}
    return names | {str(state["id"]): str(state["name"]) for state in snapshot.loaders}


def _mean(values: npt.NDArray[np.float32]) -> Floats:
    """Return the mean of each row's present values; NaN where there is none."""
    present = np.isfinite(values)
    counts = present.sum(axis=1)
    sums = np.where(present, values, 0.0).sum(axis=1, dtype=np.float64)
    mean: Floats = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return mean
