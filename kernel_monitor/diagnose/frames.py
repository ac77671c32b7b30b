"""A session's rows as an analysis reads them: means over cores and GPUs, made once for the whole session."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..steps.records import PROFILED, WARM_UP
from .limits import allowed_cores, gpus_in_use
from .measured import IDLE_S, delivering, elsewhere, in_steps, longest_interval

if TYPE_CHECKING:
    from ..store import Snapshot
    from .model import Stretch

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Steps = npt.NDArray[Any]
"""Rows of a `StepTable`."""


class Frames:
    """The rows of a snapshot; every array has one value for each, NaN where there is none.

    Attributes:
        snapshot: the session.
        time: s of the session.
        window: s since the row before, which is the time that a row stands for.
        gpus: numbers of the GPUs that this kernel uses (`gpus_in_use`).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.time = snapshot.time
        before = snapshot.time[:1] - snapshot.schema.interval
        self.window: Floats = np.diff(snapshot.time, prepend=before)
        self.gpus = gpus_in_use(snapshot)
        self._known: dict[tuple[str, float, float], Places] = {}
        self._series: dict[str, Floats] = {}
        self._steps: dict[str, tuple[Steps, Floats]] = {}

    def series(self, name: str) -> Floats:
        """One column; all NaN where there is no such series."""
        known = self._series.get(name)
        if known is None:
            column = self.snapshot.schema.columns.get(name)
            if column is None:
                known = np.full(len(self.time), np.nan)
            else:
                known = self.snapshot.values[:, column].astype(np.float64)
            self._series[name] = known
        return known

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """The cores that this process may use and that were measured, in order."""
        columns = self.snapshot.schema.columns
        return tuple(core for core in sorted(allowed_cores(self.snapshot.schema)) if f"cpu/{core}/busy" in columns)

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
    def held(self) -> Floats:
        """%, memory of the GPUs in use, their mean."""
        return _mean(self.gpu_memory)

    def fresh(self, group: str) -> npt.NDArray[np.bool_]:
        """Rows that hold a new reading of a group that is read more rarely than rows are taken."""
        age = self.series(f"sample/{group}/age")
        found: npt.NDArray[np.bool_] = ~(age >= self.window)  # NaN: nobody says that it is old
        return found

    def steps(self, loader: str, start: float = -np.inf, end: float = np.inf) -> Steps:
        """The steps of a loader that ended in `(start, end]`."""
        if loader not in self._steps:
            own = self.snapshot.steps.of(loader)
            self._steps[loader] = own, own["end"].copy()  # of its own: what lies side by side is found sooner
        own, ends = self._steps[loader]
        low, high = np.searchsorted(ends, [start, end], side="right")
        found: Steps = own[low:high]
        return found

    def of(self, loader: str, start: float, end: float) -> Places:
        """Rows in `(start, end]` in which a loader was delivering: without pauses, warm-up and profiled steps."""
        known = self._known.get((loader, start, end))
        if known is None:
            known = self._known[loader, start, end] = self._of(loader, start, end)
        return known

    def of_stretch(self, stretch: Stretch) -> Places:
        """The rows that a stretch's figures are of."""
        return self.of(stretch.loader, stretch.start, stretch.end)

    def _of(self, loader: str, start: float, end: float) -> Places:
        first, last = (int(k) for k in np.searchsorted(self.time, [start, end], side="right"))
        part = slice(first, last)
        schema, values = self.snapshot.schema, self.snapshot.values[part]
        images, step = (self.series(f"loader/{loader}/{name}")[part] for name in ("images", "step"))
        beside = elsewhere(schema, values, loader)
        used = delivering(self.time[part], images, step, longest_interval(schema, values), beside)
        rows = self.steps(loader, start, end + 60.0)
        if len(rows) and not self.snapshot.steps.dropped:  # an evaluation between two epochs is none of them
            used &= in_steps(rows, self.time[part], self.window[part])
        apart = rows[~counted(rows)]
        if len(apart):
            place = np.searchsorted(apart["end"], self.time[part]).clip(max=len(apart) - 1)
            begun = apart["end"][place] - apart["step"][place]
            used &= ~((self.time[part] > begun) & (self.time[part] <= apart["end"][place]))
        return first + np.flatnonzero(used)

    @cached_property
    def _busy(self) -> npt.NDArray[np.float32]:
        return self._part("cpu", self.cores, "busy")

    def _part(self, kind: str, numbers: tuple[int, ...], part: str) -> npt.NDArray[np.float32]:
        columns = self.snapshot.schema.columns
        places = [columns.get(f"{kind}/{number}/{part}", -1) for number in numbers]
        if -1 not in places:
            return self.snapshot.values[:, places]
        chosen = np.full((len(self.time), len(places)), np.nan, dtype=np.float32)
        for place, column in enumerate(places):
            if column >= 0:
                chosen[:, place] = self.snapshot.values[:, column]
        return chosen


def counted(rows: Steps) -> npt.NDArray[np.bool_]:
    """Which steps a stretch's figures are of: none of warm-up or profiling, and none in which the loop paused.

    A pause is what a step spends beside its wait when that is longer than 3 s and than five usual steps: a validation,
    a checkpoint. A long wait is none: the loop stood still because there was no data.
    """
    whole = rows["step"].astype(np.float64)
    good: npt.NDArray[np.bool_] = ((rows["flags"] & (WARM_UP | PROFILED)) == 0) & (whole > 0)
    if good.any():
        longest = max(IDLE_S, 5.0 * float(np.median(whole[good])))
        good &= whole - np.nan_to_num(rows["wait"].astype(np.float64)) <= longest
    return good


def _mean(values: npt.NDArray[np.float32]) -> Floats:
    """The mean of each row's present values; NaN where there is none."""
    width = values.shape[1]
    if width == 0:
        return np.full(len(values), np.nan)
    mean: Floats = values.sum(axis=1, dtype=np.float64) / width
    some = np.flatnonzero(np.isnan(mean))
    if len(some):
        there = np.isfinite(values[some])
        counts = there.sum(axis=1)
        sums = np.where(there, values[some], 0.0).sum(axis=1, dtype=np.float64)
        mean[some] = np.divide(sums, counts, out=np.full(len(some), np.nan), where=counts > 0)
    return mean
