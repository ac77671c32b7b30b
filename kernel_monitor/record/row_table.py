"""The rows of a session's file as one table over all its layouts, and its steps as another."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernel_monitor.store import STEP, StepTable
from kernel_monitor.store.charts import SLOTS

from . import decode
from .codec import families
from .decode import Chunk, Damaged, Floats, Tail
from .format import BLOCKS, EPOCHS, HOST, INTEGER, MAGNITUDE, MOST_LOADERS, NAME, SESSION_S, STEPS, STEPS_BLOCK, kind_of
from .session_facts import Stored, listed, read_hello, read_layouts, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_monitor.store import Schema

    from .decode import Floats


MOST_STEPS = 500_000  # that are read for a report; of more, evenly chosen ones
_SLACK_S = 1e-6


class _Layouts:
    """The series of all layouts of a session; unreadable parts are described in `damage`.

    Attributes:
        kinds, names, families: of each layout what it is for, its series, and how many families (`codec`) they make.
        units: of every series.
        order: all series, once each: the newest hello's first, then those that went, then the loaders'.
        hello: the newest, without its series.
    """

    def __init__(self, connection: sqlite3.Connection, damage: list[str]) -> None:
        self.kinds: dict[int, str] = {}
        self.names: dict[int, list[str]] = {}
        self.families: dict[int, int] = {}
        self.units: dict[str, str] = {}
        for number, kind, series in read_layouts(connection, damage):
            self.kinds[number] = kind
            self.names[number] = [name for name, _ in series]
            self.families[number] = len(families(self.names[number]))
            self.units.update(series)
        current, self.hello = read_hello(connection, damage)
        newest = [current] if current is not None and current in self.kinds else []
        others = sorted(self.kinds.keys() - set(newest))
        hosts = [number for number in reversed(others) if self.kinds[number] == HOST]
        loaders = [number for number in others if self.kinds[number] != HOST]
        self.order = list(dict.fromkeys(name for number in [*newest, *hosts, *loaders] for name in self.names[number]))


class RowTable:
    """The rows of a session within one read transaction; `damage` gets a description of each part that is missing."""

    def __init__(self, connection: sqlite3.Connection, damage: list[str]) -> None:
        self.connection = connection
        self.damage = damage
        self.layouts = _Layouts(connection, damage)
        every = stored(connection, damage)
        kinds = self.layouts.kinds
        known = [run for run in every if run.layout in kinds]
        if len(known) < len(every):
            damage.append(f"{len(every) - len(known)} blocks of unknown series")
        self._runs: dict[str, list[Stored]] = {HOST: []}
        for run in known:
            self._runs.setdefault(kinds[run.layout], []).append(run)
        self._series: Sequence[str] = ()
        self._where: dict[str, int] = {}
        self._places: dict[int, npt.NDArray[np.intp]] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of rows that there are, the host's first."""
        return list(self._runs)

    def stored(self, kind: str, start: float = -math.inf, end: float = math.inf) -> list[Stored]:
        """The runs of a kind's rows that touch [start, end], by their times."""
        return [run for run in self._runs.get(kind, []) if run.last >= start and run.first <= end]

    def cost(self, wanted: int, start: float = -math.inf, end: float = math.inf) -> int:
        """The cost of decoding `wanted` series of all runs that touch [start, end], in values."""
        runs = [run for kind in self.kinds for run in self.stored(kind, start, end)]
        names, families = self.layouts.names, self.layouts.families
        return sum(run.cost(len(names[run.layout]), families[run.layout], wanted) for run in runs)

    def thin(self, most: int) -> int:
        """Keep one run in n, evenly chosen, so that decoding all takes no more than `most`; returns n."""
        stride = max(1, -(-self.cost(len(self.layouts.order)) // most))
        if stride > 1:
            self._runs = {kind: runs[::stride] for kind, runs in self._runs.items()}
        return stride

    def load(self, run: Stored) -> Chunk | Tail:
        """One run. Raises Damaged."""
        data, width = _data(self.connection, run.table, run.id), len(self.layouts.names[run.layout])
        if run.table == "tail":
            found: Chunk | Tail = Tail(data, run.rows, width)
        else:
            found = Chunk(data, run.rows, width, self.layouts.families[run.layout])
        times = found.times
        # Written so that NaN is refused, too.
        if not (times.min() >= run.first - _SLACK_S and times.max() <= run.last + _SLACK_S and run.last <= SESSION_S):
            raise Damaged("its times are not those of its list")
        return found

    def blocks(
        self, kind: str, series: Sequence[str], start: float = -math.inf, end: float = math.inf
    ) -> Iterator[tuple[npt.NDArray[np.float64], Floats]]:
        """Rows, run by run: times[n], values[len(series), n], NaN where a series did not exist."""
        for run in self.stored(kind, start, end):
            values = np.full((len(series), run.rows), np.nan, dtype=np.float32)
            times = self._fill(run, series, values)
            if times is not None:
                keep = (times >= start) & (times <= end)
                yield (times, values) if keep.all() else (times[keep], values[:, keep])

    def rows(
        self, series: Sequence[str], start: float = -math.inf, end: float = math.inf
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Floats]:
        """The host's rows with all others' values beside them: numbers[n] from 0, times[n], values[len(series), n]."""
        runs = self.stored(HOST, start, end)
        total = sum(run.rows for run in runs)
        numbers = np.zeros(total, dtype=np.int64)
        times = np.full(total, np.nan)
        values = np.full((len(series), total), np.nan, dtype=np.float32)
        at = 0
        before = sum(run.rows for run in self.stored(HOST) if run.last < start)
        for run in runs:
            found = self._fill(run, series, values[:, at : at + run.rows])
            if found is not None:
                times[at : at + run.rows] = found
                numbers[at : at + run.rows] = before + np.arange(run.rows)
                at += run.rows
            before += run.rows
        numbers, times, values = numbers[:at], times[:at], values[:, :at]
        if (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            numbers, times, values = numbers[order], times[order], values[:, order]
            self.damage.append("the order of the rows: they go back in time, and are given by their times")
        keep = (times >= start) & (times <= end)
        if not keep.all():
            numbers, times, values = numbers[keep], times[keep], values[:, keep]
        for kind, places in self.columns(series).items():
            self._join(kind, series, places, times, values)
        return numbers, times, values

    def columns(self, series: Sequence[str]) -> dict[str, list[int]]:
        """The places in `series` of those that each kind of rows but the host's has, as far as there are rows of it."""
        found: dict[str, list[int]] = {}
        for place, name in enumerate(series):
            kind = kind_of(name)
            if kind in self._runs and kind != HOST:
                found.setdefault(kind, []).append(place)
        return found

    def _join(
        self, kind: str, series: Sequence[str], places: list[int], times: npt.NDArray[np.float64], values: Floats
    ) -> None:
        """Put a kind's values, of the series at these places, beside the frames of the same times."""
        if len(times) == 0:
            return
        wanted = [series[place] for place in places]
        apart = 0.5 * float(self.layouts.hello.get("interval", 0.1))
        for moments, found in self.blocks(kind, wanted, times[0] - apart, times[-1] + apart):
            # The kernel's clock and the sampler's agree to the last digits only.
            after = np.searchsorted(times, moments).clip(1, max(1, len(times) - 1))
            before = after - 1
            after = after.clip(0, len(times) - 1)
            nearest = np.where(moments - times[before] <= times[after] - moments, before, after)
            close = np.abs(times[nearest] - moments) < apart
            values[np.array(places)[:, None], nearest[close]] = found[:, close]

    def _fill(self, run: Stored, series: Sequence[str], out: Floats) -> npt.NDArray[np.float64] | None:
        try:
            found = self.load(run)
            found.fill(out, self._place(run.layout, series))
        except Damaged as error:
            self.damage.append(f"{run.rows} rows from {run.first:.1f} s to {run.last:.1f} s: {error}")
            out[:] = np.nan
            return None
        beyond = np.abs(out) >= MAGNITUDE
        if beyond.any():
            out[beyond] = np.nan
        return found.times

    def _place(self, layout: int, series: Sequence[str]) -> npt.NDArray[np.intp]:
        """For each column of a layout its place in `series`, -1 where it is not wanted; cached for one `series`."""
        if self._series is not series:
            self._series, self._places = series, {}
            self._where = {name: place for place, name in enumerate(series)}
        if layout not in self._places:
            names = self.layouts.names[layout]
            self._places[layout] = np.array([self._where.get(name, -1) for name in names], dtype=np.intp)
        return self._places[layout]


def read_steps(connection: sqlite3.Connection, damage: list[str], most: int | None = None) -> StepTable:
    """All steps by their ends; what cannot be read is left out and described in `damage`.

    Of more than `most` steps, as many evenly chosen ones are given; the others count as dropped.
    """
    batches = _batches(connection, damage)
    # First whole batches are left out, to bound the time that a long session takes; then steps.
    stride = 1 if most is None else max(1, -(-sum(batch.steps for batch in batches) // STEPS))
    loaders: dict[str, int] = {}
    found: list[npt.NDArray[Any]] = []
    dropped = sum(batch.dropped for batch in batches)
    for place, batch in enumerate(batches):
        if place % stride:
            dropped += batch.steps
            continue
        try:
            rows = decode.steps(_data(connection, "steps", batch.id), batch.steps, packed=bool(batch.packed))
        except Damaged as error:
            damage.append(f"{batch.steps} steps of {batch.loader} (batch {batch.id}): {error}")
            continue
        rows["loader"] = loaders.setdefault(batch.loader, len(loaders))
        found.append(rows)
    whole = np.concatenate(found) if found else np.empty(0, dtype=STEP)
    placed = np.isfinite(whole["end"])
    if not placed.all():
        damage.append(f"{int((~placed).sum())} steps without a time")
        whole = whole[placed]
    whole = whole[np.argsort(whole["end"], kind="stable")]
    if most is not None and len(whole) > most:
        dropped += len(whole) - most
        whole = whole[np.arange(most) * len(whole) // most]
    if most is not None:
        epochs, which = np.unique(whole["loader"].astype(np.int64) << 32 | whole["epoch"], return_inverse=True)
        if len(epochs) > EPOCHS:
            last = np.zeros(len(epochs))
            last[which] = whole["end"]  # the steps are in the order of their ends: the last assignment stays
            kept = np.isin(which, np.argsort(last)[-EPOCHS:])
            damage.append(f"the steps of all but the newest {EPOCHS:,} epochs")
            dropped += int((~kept).sum())
            whole = whole[kept]
    return StepTable(loaders=tuple(loaders), rows=whole, dropped=dropped)


def count_steps(connection: sqlite3.Connection) -> int:
    return sum(batch.steps for batch in _batches(connection, []))


class _Batch(NamedTuple):
    """A row of the file's table `steps`: `dropped` steps before these were not kept; `packed`: see `decode.steps`."""

    id: int
    loader: str
    steps: int
    dropped: int
    packed: int


def _batches(connection: sqlite3.Connection, damage: list[str]) -> list[_Batch]:
    """The batches of the newest loaders, in their order; malformed ones are left out."""
    found: list[_Batch] = []
    loaders: set[str] = set()
    left_out = others = 0
    newest = f"ORDER BY id DESC LIMIT {BLOCKS}"
    for row in listed(connection, "steps", "id, loader, n, dropped, packed", newest, damage):
        number, loader, count, dropped, packed = row
        named = isinstance(loader, str) and len(loader) <= NAME
        counted = all(isinstance(value, int) for value in (number, count, dropped, packed))
        if not named or not counted or not (0 <= count <= STEPS_BLOCK and 0 <= dropped <= INTEGER):
            left_out += 1
        elif loader not in loaders and len(loaders) >= MOST_LOADERS:
            others += 1
        else:
            loaders.add(loader)
            found.append(_Batch(*row))
    if left_out:
        damage.append(f"{left_out} batches of steps whose counts are impossible")
    if others:
        damage.append(f"the steps of all but the newest {MOST_LOADERS} loaders")
    return found[::-1]


def _data(connection: sqlite3.Connection, table: str, number: int) -> bytes:
    """The bytes of a row. Raises Damaged."""
    try:
        row = connection.execute(f"SELECT data FROM {table} WHERE id = ?", (number,)).fetchone()  # noqa: S608
    except sqlite3.DatabaseError as error:
        raise Damaged(str(error)) from error
    data = None if row is None else row[0]
    if not isinstance(data, bytes):
        raise Damaged("its bytes are not there")
    return data


# ---- Long sessions in a few thousand rows: means over equal intervals of time, where there were rows at all.

INTERVAL = "sample/interval"
_LONGEST_S = 60.0  # a row covers no more
_DRAWN_CELLS = 64 << 20
"""Cells of the heatmaps that the rows of a snapshot may take: their tiles are whole, however few rows are in one."""
_MOST_SLOTS = 2_000_000  # intervals that the rows of a snapshot may cover together


class Bins:
    """Takes rows in the order of their times, and gives the means of each bin [k·width, (k + 1)·width) s with some."""

    def __init__(self, width: float) -> None:
        self._width = width
        self._times: list[npt.NDArray[np.float64]] = []
        self._means: list[npt.NDArray[np.float32]] = []
        # The rows of the newest bin, which the next rows may belong to as well.
        self._open: tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]] | None = None

    def add(self, times: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
        """Take rows: times[n], values[m, n]; NaN is missing."""
        if self._open is not None:
            times = np.concatenate([self._open[0], times])
            values = np.concatenate([self._open[1], values], axis=1)
        if len(times) == 0:
            return
        numbers = np.floor(times / self._width)
        done = int(np.searchsorted(numbers, numbers[-1]))
        self._open = times[done:], values[:, done:].copy()
        self._close(numbers[:done], values[:, :done])

    def result(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        """The bins' middles, float64[k], and means, float32[m, k]."""
        if self._open is not None:
            times, values = self._open
            self._open = None
            self._close(np.floor(times / self._width), values)
        if not self._times:
            return np.empty(0), np.empty((0, 0), dtype=np.float32)
        return np.concatenate(self._times), np.concatenate(self._means, axis=1)

    def _close(self, numbers: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
        if len(numbers) == 0:
            return
        starts = np.flatnonzero(np.diff(numbers, prepend=-np.inf))
        there = ~np.isnan(values)
        sums = np.add.reduceat(np.where(there, values, np.float32(0)), starts, axis=1, dtype=np.float64)
        counts = np.add.reduceat(there, starts, axis=1, dtype=np.int64)
        means = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        self._times.append((numbers[starts] + 0.5) * self._width)
        self._means.append(means.astype(np.float32))


def bin_width(first: float, last: float, interval: float, rows: int) -> float:
    """Seconds of a bin so that `first` to `last` need at most `rows`: whole intervals."""
    return interval * max(1, math.ceil((last - first) / max(1, rows - 1) / interval))


def bin_seconds(table: RowTable, interval: float, max_rows: int, one_in: int) -> float:
    """Seconds of the bins: `max_rows` are enough, and each has rows even where blocks were left out."""
    runs = table.stored(HOST)
    bin_s = bin_width(runs[0].first, max(run.last for run in runs), interval, max_rows)
    if one_in == 1 or len(runs) < 2:
        return bin_s
    apart = float(np.median(np.diff([run.first for run in runs])))
    return max(bin_s, interval * math.ceil(apart / interval))


def binned(table: RowTable, names: Sequence[str], bin_s: float) -> tuple[npt.NDArray[np.float64], Floats]:
    """All rows as means over bins of `bin_s` seconds: middles[bins], values[series, bins], NaN where nothing is."""
    others = table.columns(names)
    beside = {place for places in others.values() for place in places}
    of_host = [place for place in range(len(names)) if place not in beside]
    middles, means = _means(table, HOST, [names[place] for place in of_host], bin_s)
    out = np.full((len(names), len(middles)), np.nan, dtype=np.float32)
    if len(middles) == 0:  # no block can be read
        return middles, out
    out[of_host] = means
    for kind, places in others.items():
        moments, means = _means(table, kind, [names[place] for place in places], bin_s)
        _, here, there = np.intersect1d(middles, moments, assume_unique=True, return_indices=True)
        if len(here):
            out[np.array(places)[:, None], here] = means[:, there]
    if INTERVAL in names:
        interval = out[names.index(INTERVAL)]
        np.clip(interval, bin_s, max(bin_s, _LONGEST_S), out=interval)  # a bin's row lasts until the next bin
    return middles, out


def _means(
    table: RowTable, kind: str, names: Sequence[str], bin_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    bins = Bins(bin_s)
    for times, values in table.blocks(kind, names):
        bins.add(times, values)
    return bins.result()


def drawable(schema: Schema, times: npt.NDArray[np.float64], values: Floats) -> bool:
    """Return whether charts of these rows stay small: not so where rows are far apart, or claim to cover years."""
    tiles = len(np.unique(np.floor(times / schema.interval / SLOTS))) * SLOTS
    rows = len(schema.cpus) + 5 * len(schema.gpus) + sum(len(node.cores) for node in schema.nodes)
    if tiles * rows > _DRAWN_CELLS:
        return False
    if INTERVAL not in schema.columns:
        return True
    covered = float(np.nansum(values[schema.columns[INTERVAL]], dtype=np.float64))
    return covered / schema.interval <= _MOST_SLOTS
