"""Reading recorded sessions: while they are recorded, and whatever became of the processes that did."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.store import LoaderInfo, Rows, Schema, Series, Snapshot
from kernel_monitor.store.schema import gpus_from_json

from . import steptable
from .bins import Bins, width
from .decode import STEP_FIELDS
from .format import HOST, LOADERS, SUFFIX, Access, access, is_live, last_ends, read_meta
from .sessions import find
from .table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pandas as pd

    from .decode import Floats

INTERVAL = "sample/interval"


def open_session(path: str | os.PathLike[str] | None = None) -> Session:
    """Open a recorded session.

    Args:
        path: its file; a folder, for the newest session in it; the beginning of a session's id or of its file's name;
            None for the newest of all.

    Raises:
        SessionError: there is none, or it is damaged, empty, of a newer format, or no session at all.
    """
    return Session(find(path))


class Session:
    """One recorded session; every answer is of the moment in which it is asked for. Thread-safe.

    What is damaged is left out where the rest can be read, with a warning; `check` lists it.

    Attributes:
        path: its file.
        id: the session.
        origin: Unix s at session time 0, when the monitor was started.
        started: the same: Unix s.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._access: Access = access(path)
        with self._access.connect() as connection:
            meta = read_meta(connection)
            first, _ = last_ends(connection)
        try:
            self.id = str(meta["session"])
            self.origin = self.started = float(meta["origin"])
        except (KeyError, TypeError, ValueError) as error:
            raise SessionError(f"{path} is damaged: it does not say which session it is ({error}).") from error
        if first != first:
            raise SessionError(f"{path} is empty: nothing was measured yet.")

    def __repr__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.started))
        return f"<Session {self.id[:8]}, {began}, {self.seconds:.0f} s, {self.path}>"

    @property
    def seconds(self) -> float:
        """From the first row to the last."""
        with self._access.connect() as connection:
            first, last = last_ends(connection)
        return last - first

    @property
    def live(self) -> bool:
        """Whether it is being recorded."""
        return self._is_live(self._meta())

    @property
    def ended(self) -> dict[str, Any] | None:
        """How it ended: `reason`, `time` (session s), `goodbye` (its kernel ended it as it should); None while live."""
        with self._access.connect() as connection:
            meta = read_meta(connection)
            _, last = last_ends(connection)
        if meta.get("ended") is not None:
            return dict(meta["ended"])
        if self._is_live(meta):
            return None
        reason = "this is a copy of a live session" if "copied" in meta else "the sampler was killed"
        return {"reason": reason, "time": last, "goodbye": False}

    @property
    def facts(self) -> dict[str, Any]:
        """What the kernel said of itself: versions and the like."""
        return dict(self._meta().get("facts") or {})

    @property
    def loaders(self) -> list[dict[str, Any]]:
        """The loaders' last states (`docs/architecture.md`, *LoaderState*), with the counts of their earlier epochs."""
        meta = self._meta()
        epochs = meta.get("epochs") or {}
        return [
            {**state, "epochs": epochs[state["id"]]} if state.get("id") in epochs else state
            for state in meta.get("loaders") or []
        ]

    @property
    def schema(self) -> Schema:
        """All series that there ever were: those of the newest frame first, the loaders' last."""
        with self._table() as table:
            return self._schema(table)

    def events(self) -> list[dict[str, Any]]:
        """What happened, oldest first; each with its `id`, `kind` and `time` (session s)."""
        with self._access.connect() as connection:
            found = connection.execute("SELECT id, event FROM events ORDER BY time, id").fetchall()
        return [{"id": number, **json.loads(text)} for number, text in found]

    def steps(self) -> dict[str, npt.NDArray[Any]]:
        """The steps of all loaders, in the order of their ends: arrays of one length.

        `loader` (its id), `end` (session s), `epoch`, `batch`, `images`, `wait` and `step` (s), the phases `copy`,
        `forward`, `backward`, `optimizer` (s, NaN where they were not measured), `flags` (`steps.records`).
        """
        with self._table() as table:
            found = steptable.read(table.connection, table.damage)
        names = np.array(found.loaders or ("",))
        return {"loader": names[found.rows["loader"]], **{key: found.rows[key] for key in STEP_FIELDS}}

    def rows(self, start: float | None = None, end: float | None = None, series: Iterable[str] | None = None) -> Rows:
        """The rows in [start, end] (session s; all if not given), as they were measured.

        Args:
            series: the columns wanted, in their order; all if not given. One that never was is a SessionError.
        """
        with self._table() as table:
            schema = self._chosen(self._schema(table), series)
            numbers, times, values = table.rows(schema.names, start, end)
            gone = int((read_meta(table.connection).get("dropped") or {"rows": 0})["rows"])
        return Rows(schema=schema, seq=numbers + gone + 1, time=times, values=values.T)

    def snapshot(self, max_rows: int = 6000) -> Snapshot:
        """The session for the dashboard and the report: at most `max_rows` rows.

        A longer session is given as means over equal bins; stretches without rows stay gaps. `facts["recorded"]` says
        `started` (Unix s), `ended` (as `ended`), `live`, `bin_s` (None if these are the rows themselves), `rows` (that
        were recorded) and `damaged` (what could not be read).
        """
        with self._table(warn=False) as table:
            schema = self._schema(table)
            runs = table.stored(HOST)
            recorded = sum(run.rows for run in runs)
            bin_s: float | None = None
            if recorded <= max_rows:
                _, times, values = table.rows(schema.names)
            else:
                first, last = runs[0].first, max(run.last for run in runs)
                bin_s = width(first, last, schema.interval, max_rows)
                times, values = self._binned(table, schema, bin_s)
                schema = replace(schema, interval=bin_s)
            steps = steptable.read(table.connection, table.damage, most=steptable.MOST)
        facts = {
            **self.facts,
            "session": self.id,
            "interval": schema.interval,
            "recorded": {
                "started": self.started,
                "ended": self.ended,
                "live": self.live,
                "bin_s": bin_s,
                "rows": recorded,
                "damaged": table.damage,
            },
        }
        return Snapshot(
            schema=schema,
            seq=np.arange(1, len(times) + 1, dtype=np.int64),
            time=times,
            values=np.ascontiguousarray(values.T),
            events=self.events(),
            loaders=self.loaders,
            facts=facts,
            steps=steps,
        )

    def _binned(self, table: Table, schema: Schema, bin_s: float) -> tuple[npt.NDArray[np.float64], Floats]:
        names = schema.names
        host = [place for place, name in enumerate(names) if not name.startswith("loader/")]
        rest = [place for place, name in enumerate(names) if name.startswith("loader/")]
        bins = Bins(bin_s)
        for times, values in table.blocks(HOST, [names[place] for place in host]):
            bins.add(times, values)
        middles, means = bins.result()
        out = np.full((len(names), len(middles)), np.nan, dtype=np.float32)
        out[host] = means
        if rest:
            bins = Bins(bin_s)
            for times, values in table.blocks(LOADERS, [names[place] for place in rest]):
                bins.add(times, values)
            moments, means = bins.result()
            _, here, there = np.intersect1d(middles, moments, assume_unique=True, return_indices=True)
            out[np.array(rest)[:, None], here] = means[:, there]
        if INTERVAL in names:
            interval = out[names.index(INTERVAL)]
            np.maximum(interval, bin_s, out=interval)  # of a bin the next row is a bin away
        return middles, out

    def to_pandas(self, series: Iterable[str] | None = None) -> pd.DataFrame:
        """The rows as a DataFrame: UTC timestamps down, series across, float32, NaN missing.

        Raises:
            MonitorError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MonitorError("to_pandas() needs pandas: pip install pandas") from error
        rows = self.rows(series=series)
        stamps = np.round((self.origin + rows.time) * 1e6).astype("int64").astype("datetime64[us]")
        index = pd.DatetimeIndex(stamps, name="time").tz_localize("UTC")
        return pd.DataFrame(rows.values, index=index, columns=list(rows.schema.names), copy=False)

    def check(self) -> list[str]:
        """What is damaged, in words; nothing if the session is whole."""
        found: list[str] = []
        with self._access.connect() as connection:
            try:
                answer = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
            except sqlite3.DatabaseError as error:
                answer = [str(error)]
            found += [line for line in answer if line != "ok"]
            table = Table(connection, found)
            for kind in (HOST, LOADERS):
                series = table.layouts.order
                latest = float("-inf")
                for times, _ in table.blocks(kind, series):
                    if (np.diff(times, prepend=latest) < 0).any():
                        found.append(f"rows of the {kind} go back in time at {times[0]:.1f} s")
                    latest = max(latest, float(times[-1]))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.steps()
        return found + [str(warning.message) for warning in told]

    def copy(self, destination: str | os.PathLike[str]) -> Path:
        """Write a whole copy, at any moment, to a file that does not exist yet or into a folder; returns the file.

        Raises:
            SessionError: the file exists, or cannot be written.
        """
        target = Path(destination).expanduser()
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
            return read_meta(connection)

    def _is_live(self, meta: dict[str, Any]) -> bool:
        return meta.get("ended") is None and "copied" not in meta and is_live(meta.get("writer"), self.path)

    @contextmanager
    def _table(self, *, warn: bool = True) -> Iterator[Table]:
        with self._access.connect() as connection:
            table = Table(connection, [])
            yield table
        if table.damage and warn:
            warnings.warn(f"{self.path} is damaged; missing: {'; '.join(table.damage)}.", stacklevel=4)

    def _schema(self, table: Table) -> Schema:
        layouts = table.layouts
        hello = layouts.hello
        ids = dict.fromkeys(name.split("/")[1] for name in layouts.order if name.startswith("loader/"))
        called = {state.get("id"): state.get("name") for state in read_meta(table.connection).get("loaders") or []}
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
                LoaderInfo(id=one, name=called.get(one) or one, phased=f"loader/{one}/other" in layouts.units)
                for one in ids
            ),
            host=hello["host"],
        )

    def _chosen(self, schema: Schema, series: Iterable[str] | None) -> Schema:
        if series is None:
            return schema
        wanted: Sequence[str] = list(series)
        unknown = [name for name in wanted if name not in schema.columns]
        if unknown:
            raise SessionError(f"The session has no series {', '.join(unknown)}.")
        return replace(schema, series=tuple(schema.series[schema.columns[name]] for name in wanted))
