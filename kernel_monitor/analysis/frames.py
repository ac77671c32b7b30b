"""The rows and steps of a session, or of a part of it, as an analysis reads them: means over cores and GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..store import Snapshot, StepTable
from .counted_steps import counted
from .deliveries import delivering, in_steps
from .machine_limits import allowed_cores

if TYPE_CHECKING:
    from ..store import Schema

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Steps = npt.NDArray[Any]  # rows of a `StepTable`
LAST_STEP_S = 60.0  # steps that end so much later are looked at, too: one of them may have begun before the end


class Table(Protocol):
    """What is read of `store.Rows` and of `store.Snapshot`."""

    @property
    def schema(self) -> Schema: ...

    @property
    def time(self) -> npt.NDArray[np.float64]: ...

    @property
    def values(self) -> npt.NDArray[np.float32]: ...


class Frames:
    """The rows of a table that lie in `(start, end]`; every array has one value for each, NaN where there is none.

    Args:
        table: rows, oldest first.
        steps: of the loaders; left out, those of a snapshot, and none of anything else.
        start, end: session s.

    Attributes:
        schema: of the columns.
        time: s of the session.
        values: float32[rows, columns].
        window: s since the row before, also across a gap: the time that a row stands for.
        all_steps: the steps of all loaders, of this time.
    """

    def __init__(
        self, table: Table, steps: StepTable | None = None, start: float = -np.inf, end: float = np.inf
    ) -> None:
        if steps is None:
            steps = table.steps if isinstance(table, Snapshot) else StepTable()
        low, high = 0, len(table.time)
        if start > -np.inf or end < np.inf:
            low, high = np.searchsorted(table.time, [start, end], side="right")
            first, last = np.searchsorted(steps.rows["end"], [start, end + LAST_STEP_S], side="right")
            steps = replace(steps, rows=steps.rows[first:last])
        self.schema = table.schema
        self.time = table.time[low:high]
        self.values = table.values[low:high]
        before = table.time[low - 1 : low] if low else self.time[:1] - table.schema.interval
        self.window: Floats = np.diff(self.time, prepend=before)
        self.all_steps = steps
        self._delivering: dict[tuple[str, float, float], Places] = {}
        self._series: dict[str, Floats] = {}
        self._steps: dict[str, tuple[Steps, Floats]] = {}

    def series(self, name: str) -> Floats:
        """One column; all NaN where there is no such series."""
        values = self._series.get(name)
        if values is None:
            column = self.schema.columns.get(name)
            missing = np.full(len(self.time), np.nan)
            values = self._series[name] = missing if column is None else self.values[:, column].astype(np.float64)
        return values

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

    @cached_property
    def cpu(self) -> Floats:
        """%, mean of those cores."""
        return _mean(self._busy)

    @cached_property
    def load(self) -> Floats:
        """%, of the CPU time that this process may take: of its quota where that binds, else as `cpu`."""
        found: Floats = np.fmax(self.cpu, self.series("container/cpu"))
        return found

    @cached_property
    def hottest(self) -> tuple[Floats, Places]:
        """%, the busiest of those cores in each row, and which one (its place in `cores`; 0 where there is none)."""
        if not self.cores:
            return np.full(len(self.time), np.nan), np.zeros(len(self.time), dtype=np.intp)
        present = np.where(np.isnan(self._busy), np.float32(-1), self._busy)
        place = present.argmax(axis=1)
        most = present[np.arange(len(present)), place].astype(np.float64)
        return np.where(most < 0, np.nan, most), place

    @cached_property
    def iowait(self) -> Floats:
        """%, mean of those cores."""
        return _mean(self._part("cpu", self.cores, "iowait"))

    @cached_property
    def steal(self) -> Floats:
        """%, mean of those cores."""
        return _mean(self._part("cpu", self.cores, "steal"))

    @cached_property
    def gpu(self) -> Floats:
        """%, mean of the GPUs in use."""
        return _mean(self.utilisation)

    @cached_property
    def utilisation(self) -> npt.NDArray[np.float32]:
        """%, float32[rows, GPUs in use]."""
        return self._part("gpu", self.gpus, "utilisation")

    @cached_property
    def gpu_memory(self) -> npt.NDArray[np.float32]:
        """%, float32[rows, GPUs in use]."""
        return self._part("gpu", self.gpus, "memory")

    @cached_property
    def mean_gpu_memory(self) -> Floats:
        """%, mean of the GPUs in use."""
        return _mean(self.gpu_memory)

    def fresh(self, group: str) -> npt.NDArray[np.bool_]:
        """Rows that hold a new reading of a group that is read more rarely than rows are taken."""
        age = self.series(f"sample/{group}/age")
        found: npt.NDArray[np.bool_] = ~(age >= self.window)  # NaN: the reading is not known to be old
        return found

    def samples(self, loader: str | None) -> Floats:
        """Samples that a loader delivered in each row; 0 where it delivered none."""
        images = self.series(f"loader/{loader}/images")
        found: Floats = np.where(np.isfinite(images), images, 0.0) * self.window
        return found

    def steps(self, loader: str, start: float = -np.inf, end: float = np.inf) -> Steps:
        """The steps of a loader that ended in `(start, end]`."""
        if loader not in self._steps:
            own = self.all_steps.of(loader)
            self._steps[loader] = own, own["end"].copy()  # contiguous, which a search reads faster
        own, ends = self._steps[loader]
        low, high = np.searchsorted(ends, [start, end], side="right")
        found: Steps = own[low:high]
        return found

    def of(self, loader: str, start: float = -np.inf, end: float = np.inf) -> Places:
        """Rows in `(start, end]` in which a loader was delivering, none of them of a step that does not count."""
        key = (loader, start, end)
        if key not in self._delivering:
            self._delivering[key] = self._of(loader, start, end)
        return self._delivering[key]

    def _of(self, loader: str, start: float, end: float) -> Places:
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
        used = delivering(time, images, step, interval, others)
        rows = self.steps(loader, start, end + LAST_STEP_S)
        if len(rows):
            if not self.all_steps.dropped:  # an evaluation between two epochs is in no step
                used &= in_steps(rows, time, window)
            apart = rows[~counted(rows)]
            if len(apart):
                place = np.searchsorted(apart["end"], time).clip(max=len(apart) - 1)
                began = apart["end"][place] - apart["step"][place]
                used &= ~((time > began) & (time <= apart["end"][place]))
        return int(low) + np.flatnonzero(used)

    @cached_property
    def _busy(self) -> npt.NDArray[np.float32]:
        return self._part("cpu", self.cores, "busy")

    def _part(self, kind: str, numbers: tuple[int, ...], part: str) -> npt.NDArray[np.float32]:
        columns = self.schema.columns
        places = [columns.get(f"{kind}/{number}/{part}", -1) for number in numbers]
        if -1 not in places:
            return self.values[:, places]
        chosen = np.full((len(self.time), len(places)), np.nan, dtype=np.float32)
        for place, column in enumerate(places):
            if column >= 0:
                chosen[:, place] = self.values[:, column]
        return chosen


def _mean(values: npt.NDArray[np.float32]) -> Floats:
    """The mean of each row's present values; NaN where there is none."""
    width = values.shape[1]
    if width == 0:
        return np.full(len(values), np.nan)
    mean: Floats = values.sum(axis=1, dtype=np.float64) / width
    some = np.flatnonzero(~np.isfinite(mean))
    if len(some):
        present = np.isfinite(values[some])
        counts = present.sum(axis=1)
        sums = np.where(present, values[some], 0.0).sum(axis=1, dtype=np.float64)
        mean[some] = np.divide(sums, counts, out=np.full(len(some), np.nan), where=counts > 0)
    return mean
