"""Reads recorded sessions: live ones, finished ones, and those whose recorder was killed."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.own_files import expanded
from kernel_monitor.store import LoaderInfo, Rows, Schema, Series, Snapshot
from kernel_monitor.store.charts import SLOTS
from kernel_monitor.store.schema import gpus_from_json

from .format import HOST, SHOWN_VALUES, SNAPSHOT_VALUES, STEPS, SUFFIX, VALUES, is_live
from .format import MOST_LOADERS as LOADERS_READ
from .row_table import MOST_STEPS, STEP_FIELDS, Floats, RowTable, count_steps, read_steps
from .session_facts import (
    Access,
    limit_resources,
    nodes,
    ranks,
    read_events,
    read_meta,
    shown_events,
    states,
    time_range,
)
from .sessions import find, identity

if TYPE_CHECKING:
    import pandas as pd


def open_session(path: str | os.PathLike[str] | None = None) -> Session:
    """Open a recorded session.

    Args:
        path: its file; a folder, for the newest session in it; the beginning of a session's id or of its file's name;
            None for the newest of all.

    Raises:
        SessionError: there is none, or it is damaged, empty, of another format, or no session at all.
    """
    return Session(find(path))


class Session:
    """A recorded session; each answer is of the moment of the call. Thread-safe.

    Damaged parts are left out, with a warning; `check` lists them. `path` is its file, `id` the session's id, `origin`
    the Unix time of session time 0, when the monitor was started.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._access = Access(path)
        damage: list[str] = []
        with self._access.connect() as connection:
            meta = read_meta(connection, damage)
            first, _ = time_range(connection)
        self.id, self.origin = identity(path, meta, damage)
        if first != first:
            raise SessionError(f"{path} is empty: nothing was measured yet.")

    def __repr__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.origin))
        return f"<Session {self.id[:8]}, {began}, {self.seconds:.0f} s, {self.path}>"

    @property
    def seconds(self) -> float:
        """The time from the first row to the last, s."""
        with self._access.connect() as connection:
            first, last = time_range(connection)
        return last - first

    @property
    def live(self) -> bool:
        """Return whether the session is still being recorded."""
        return self.ended is None

    @property
    def ended(self) -> dict[str, Any] | None:
        """The end: `reason`, `time` (session s), `goodbye` (its kernel ended it properly); None while live."""
        with self._access.connect() as connection:
            meta = read_meta(connection, [])
            _, last = time_range(connection)
        if "ended" in meta:
            return dict(meta["ended"])
        if "copied" not in meta and is_live(meta.get("writer"), self.path):
            return None
        reason = "this is a copy of a live session" if "copied" in meta else "the sampler was killed"
        return {"reason": reason, "time": last, "goodbye": False}

    @property
    def cell_running(self) -> bool | None:
        """Return whether a cell runs, or ran when the recording ended; None where that was not recorded."""
        found: bool | None = self._meta().get("cell_running")
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the kernel, such as versions."""
        return dict(self._meta().get("facts") or {})

    @property
    def loaders(self) -> list[dict[str, Any]]:
        """The loaders' last states (`docs/messages.md`, *LoaderState*), with the counts of their earlier epochs."""
        return states(self._meta(), [])

    @property
    def schema(self) -> Schema:
        """All series of the session: those of the newest frame first, the loaders' and other machines' last."""
        with self._table() as table:
            return self._schema(table)

    def events(self) -> list[dict[str, Any]]:
        """Return the events, oldest first; each with its `id`, `kind` and `time` (session s)."""
        with self._reading() as (connection, damage):
            return read_events(connection, damage)

    def steps(self, most: int | None = STEPS) -> dict[str, npt.NDArray[Any]]:
        """Return the steps of all loaders, in the order of their ends: arrays of one length.

        `loader` (its id), `end` (session s), `epoch`, `batch`, `images`, `wait` and `step` (s), the phases `copy`,
        `forward`, `backward`, `optimizer` (s, NaN where they were not measured), `flags` (`steps.measured_step`).

        Args:
            most: with more steps a SessionError is raised before any is read; None: no limit.
        """
        with self._reading() as (connection, damage):
            count = 0 if most is None else count_steps(connection)
            if most is not None and count > most:
                raise SessionError(f"{self.path} has {count:,} steps, more than {most:,}: steps(most=None) reads them.")
            found = read_steps(connection, damage)
        names = np.array(found.loaders or ("",))
        return {"loader": names[found.rows["loader"]], **{key: found.rows[key] for key in STEP_FIELDS}}

    def rows(
        self,
        start: float | None = None,
        end: float | None = None,
        series: Iterable[str] | None = None,
        *,
        most: int | None = VALUES,
    ) -> Rows:
        """Return the rows in [start, end] (session s; all if not given), as they were measured.

        Args:
            series: the columns wanted, in their order; all if not given. An unknown series is a SessionError.
            most: with more values to unpack a SessionError is raised before any is read; None: no limit.
        """
        with self._table() as table:
            schema = self._chosen(self._schema(table), series)
            span = -math.inf if start is None else start, math.inf if end is None else end
            cost = 0 if most is None else table.cost(len(schema.series), *span)
            if most is not None and cost > most:
                raise SessionError(
                    f"{self.path} has {cost:,} values to unpack, more than {most:,}: name series or a range of time, "
                    "or pass most=None."
                )
            numbers, times, values = table.rows(schema.names, *span)
            gone = read_meta(table.connection, []).get("dropped", {"rows": 0})["rows"]
        return Rows(schema=schema, seq=numbers + gone + 1, time=times, values=values.T)

    def snapshot(self, max_rows: int = 6000) -> Snapshot:
        """Return the session for the dashboard and the report: at most `max_rows` rows.

        A longer session is given as means over equal bins, a very long one as means of evenly chosen blocks; times
        without rows stay gaps. `facts["recorded"]` has `started` (Unix s), `ended` (as `ended`), `live`, `bin_s` (None
        if these are the rows themselves), `rows` (recorded), `one_in` (one block in so many was read) and `damaged`
        (the parts that could not be read).
        """
        with self._table(warn=False) as table:
            schema = self._schema(table)
            max_rows = max(1, min(max_rows, SNAPSHOT_VALUES // max(1, len(schema.series))))
            recorded = sum(run.rows for run in table.stored(HOST))
            one_in = table.thin(SHOWN_VALUES)
            bin_s: float | None = None
            times, values = np.empty(0), np.empty((len(schema.series), 0), dtype=np.float32)
            few = recorded <= max_rows and one_in == 1
            if few:
                _, times, values = table.rows(schema.names)
            if not few or not drawable(schema, times, values):
                bin_s = bin_seconds(table, schema.interval, max_rows, one_in)
                times, values = binned(table, schema.names, bin_s)
                schema = replace(schema, interval=bin_s)
            steps = read_steps(table.connection, table.damage, most=MOST_STEPS)
            meta = read_meta(table.connection, table.damage)
            loaders = states(meta, table.damage)
            known = {*steps.loaders, *(loader.id for loader in schema.loaders), *(state["id"] for state in loaders)}
            events = shown_events(read_events(table.connection, table.damage), known, table.damage)
        ended = self.ended
        label: dict[str, Any] = {"started": self.origin, "ended": ended, "live": ended is None}
        label |= {"bin_s": bin_s, "rows": recorded, "one_in": one_in, "damaged": _first(table.damage)}
        facts = {**meta.get("facts", {}), "session": self.id, "interval": schema.interval, "recorded": label}
        return Snapshot(
            schema=schema,
            seq=np.arange(1, len(times) + 1, dtype=np.int64),
            time=times,
            values=np.ascontiguousarray(values.T),
            events=events,
            loaders=loaders,
            facts=facts,
            steps=steps,
        )

    def to_pandas(self, series: Iterable[str] | None = None, *, most: int | None = VALUES) -> pd.DataFrame:
        """Return the rows as a DataFrame: UTC timestamps down, series across, float32, NaN missing; arguments: `rows`.

        A MonitorError without pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MonitorError("to_pandas() needs pandas: pip install pandas") from error
        rows = self.rows(series=series, most=most)
        stamps = np.round((self.origin + rows.time) * 1e6).astype("int64").astype("datetime64[us]")
        index = pd.DatetimeIndex(stamps, name="time").tz_localize("UTC")
        return pd.DataFrame(rows.values, index=index, columns=list(rows.schema.names), copy=False)

    def check(self) -> list[str]:
        """Return descriptions of the damaged parts; none if intact. Of a long session only some blocks are read."""
        with self._access.connect() as connection:
            try:
                answer = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            except sqlite3.DatabaseError as error:
                answer = [str(error)]
        found = [line for line in answer if line != "ok"]
        with self._access.connect() as connection:
            meta = read_meta(connection, found)
            states(meta, found)
            nodes(meta, (), found)
            ranks(meta, (), found)
            read_events(connection, found)
            table = RowTable(connection, found)
            table.thin(SHOWN_VALUES)
            for kind in table.kinds:
                latest = float("-inf")
                for times, _ in table.blocks(kind, table.layouts.order):
                    if (np.diff(times, prepend=latest) < 0).any():
                        found.append(f"rows of the {kind} go back in time at {times[0]:.1f} s")
                    latest = max(latest, float(times[-1]))
            read_steps(connection, found, most=MOST_STEPS)
        return found

    def copy(self, destination: str | os.PathLike[str]) -> Path:
        """Write a copy, at any moment, to a new file or into a folder; returns the file.

        A SessionError if the file exists, or cannot be written.
        """
        target = expanded(destination)
        if target.is_dir():
            target /= self.path.name
        elif target.suffix == "":
            target = target.with_suffix(SUFFIX)
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError as error:
            raise SessionError(f"{target} exists: name another file.") from error
        except OSError as error:
            raise SessionError(f"{target} cannot be written: {error.strerror}.") from error
        try:
            with self._access.connect() as source, closing(sqlite3.connect(target, isolation_level=None)) as copy:
                source.backup(copy)
                limit_resources(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
                now = json.dumps(time.time())
                copy.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [("copied", now), ("told", now)])
        except (sqlite3.Error, SessionError) as error:
            target.unlink(missing_ok=True)
            raise SessionError(f"{target} could not be written: {error}") from error
        return target

    # -- inside -----------------------------------------------------------------------------------------------------

    def _meta(self) -> dict[str, Any]:
        with self._access.connect() as connection:
            return read_meta(connection, [])

    @contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, list[str]]]:
        """Yield a connection, and a list for descriptions of damaged parts, of which a warning is given at the end."""
        damage: list[str] = []
        with self._access.connect() as connection:
            yield connection, damage
        self._warn(damage)

    @contextmanager
    def _table(self, *, warn: bool = True) -> Iterator[RowTable]:
        with self._access.connect() as connection:
            table = RowTable(connection, [])
            yield table
        if warn:
            self._warn(table.damage)

    def _warn(self, damage: list[str]) -> None:
        if damage:
            warnings.warn(f"{self.path} is damaged; missing: {'; '.join(_first(damage))}.", stacklevel=5)

    def _schema(self, table: RowTable) -> Schema:
        layouts = table.layouts
        hello = layouts.hello
        ids = dict.fromkeys(name.split("/")[1] for name in layouts.order if name.startswith("loader/"))
        meta = read_meta(table.connection, [])
        names = {state["id"]: state["name"] for state in states(meta, [])}
        return Schema(
            version=1,
            interval=float(hello["interval"]),
            origin=self.origin,
            capacity=max(1, sum(run.rows for run in table.stored(HOST))),
            series=tuple(Series(name, layouts.units[name]) for name in layouts.order),
            cpus=tuple(hello["cpus"]),
            gpus=gpus_from_json(hello["gpus"]),
            gpu_reason=hello["gpu_reason"],
            loaders=tuple(
                LoaderInfo(
                    id=loader, name=names.get(loader) or loader, phased=f"loader/{loader}/other" in layouts.units
                )
                for loader in list(ids)[-LOADERS_READ:]
            ),
            nodes=nodes(meta, layouts.order, []),
            ranks=ranks(meta, layouts.order, []),
            host=hello["host"],
        )

    def _chosen(self, schema: Schema, series: Iterable[str] | None) -> Schema:
        if series is None:
            return schema
        wanted = list(series)
        unknown = [name for name in wanted if name not in schema.columns]
        if unknown:
            raise SessionError(f"The session has no series {', '.join(unknown)}.")
        return replace(schema, series=tuple(schema.series[schema.columns[name]] for name in wanted))


def _first(damage: list[str], most: int = 20) -> list[str]:
    """Return the first descriptions, and the number of the others."""
    return damage if len(damage) <= most else [*damage[:most], f"{len(damage) - most:,} pieces more"]


# ---- Long sessions in a few thousand rows: means over equal intervals of time, where there were rows at all.

INTERVAL = "sample/interval"
_LONGEST_S = 60.0  # a row covers no more
_DRAWN_CELLS = 64 << 20
"""Cells of the heatmaps that the rows of a snapshot may take: their tiles are whole, however few rows are in one."""
_MOST_SLOTS = 2_000_000  # intervals that the rows of a snapshot may cover together


class Bins:
    """The means of rows over bins [k·width, (k + 1)·width) s; rows are added in the order of their times."""

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
        """Return the bins' middles, float64[k], and means, float32[m, k]."""
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
    """Return the width of bins, in s (whole intervals), so that `first` to `last` need at most `rows` of them."""
    return interval * max(1, math.ceil((last - first) / max(1, rows - 1) / interval))


def bin_seconds(table: RowTable, interval: float, max_rows: int, one_in: int) -> float:
    """Return the width of at most `max_rows` bins, in s; each has rows even where blocks were left out."""
    runs = table.stored(HOST)
    bin_s = bin_width(runs[0].first, max(run.last for run in runs), interval, max_rows)
    if one_in == 1 or len(runs) < 2:
        return bin_s
    apart = float(np.median(np.diff([run.first for run in runs])))
    return max(bin_s, interval * math.ceil(apart / interval))


def binned(table: RowTable, names: Sequence[str], bin_s: float) -> tuple[npt.NDArray[np.float64], Floats]:
    """Return all rows as means over bins of `bin_s` seconds: middles[bins], values[series, bins], NaN missing."""
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
