"""The store of a session: one writer, any number of readers, each with a cursor of its own."""

from __future__ import annotations

import time as clock
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from ..node_sources import Node
from ..rank import Rank
from .charts import DEFAULT_CHARTS, page_series
from .schema import (
    Schema,
    Series,
    loader_series,
    loaders_from_json,
    machine_from_json,
    nodes_series,
    ranks_series,
    series_from_json,
)
from .snapshot import Rows, Snapshot, StepLog

# ---- A bounded ring of rows over named columns. Not thread-safe: the store locks it.

BLOCK = 64  # rows that are copied at once, while the processor's cache has them


class Ring:
    """The newest `capacity` rows: a number, a time and float32 values each; `names` are the columns in order."""

    def __init__(self, capacity: int, names: Sequence[str] = ()) -> None:
        self.last_seq = 0
        self._gone = 0  # rows that a smaller ring could not keep
        self._names = tuple(names)
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one row, not {capacity}")
        self.capacity = capacity
        self._time = np.zeros(capacity, dtype=np.float64)
        self._values = np.empty((capacity, self.width), dtype=np.float32)  # a row is read only once it was written

    @property
    def width(self) -> int:
        return len(self._names)

    @property
    def newest(self) -> npt.NDArray[np.float32]:
        """The newest row's values, not copied; a ValueError if there is none."""
        if self.last_seq <= self._gone:
            raise ValueError("no row was added yet")
        row: npt.NDArray[np.float32] = self._values[(self.last_seq - 1) % self.capacity]
        return row

    def append(self, time: float, values: npt.NDArray[np.float32]) -> int:
        """Add a row of `width` values over the oldest one; returns its number, from 1, never reused."""
        place = self.last_seq % self.capacity
        self._values[place] = values
        self._time[place] = time
        self.last_seq += 1
        return self.last_seq

    def rename(self, names: Sequence[str]) -> None:
        """Take these columns from now on: those with a known name keep their past, the others are NaN in it."""
        old = {name: column for column, name in enumerate(self._names)}
        source = np.array([old.get(name, -1) for name in names], dtype=np.intp)
        new = source < 0
        source[new] = 0
        fresh = np.empty((self.capacity, len(names)), dtype=np.float32)
        used = min(self.last_seq, self.capacity)  # the other rows take no memory until they are written
        for first in range(0, used, BLOCK):
            rows = slice(first, min(used, first + BLOCK))
            if self.width:
                np.take(self._values[rows], source, axis=1, out=fresh[rows], mode="clip")
            fresh[rows, new] = np.nan
        self._values = fresh
        self._names = tuple(names)

    def resize(self, capacity: int) -> None:
        """Change the capacity to `capacity` rows; of the rows that are kept the newest stay."""
        numbers, time, values = self.since(self.last_seq - capacity)
        self._allocate(capacity)
        self._gone = self.last_seq - len(numbers)
        places = (numbers - 1) % capacity
        self._time[places], self._values[places] = time, values

    def times(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return copies of the numbers and times of the rows that are kept, oldest first."""
        numbers, time, _ = self.since(0, np.empty(0, dtype=np.intp))
        return numbers, time

    def since(
        self, seq: int, columns: npt.NDArray[np.intp] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float32]]:
        """Return copies of numbers, times and values (of `columns`, or all) of the kept rows after `seq`."""
        first = max(seq, self.last_seq - self.capacity, self._gone) + 1
        numbers = np.arange(first, self.last_seq + 1, dtype=np.int64)
        places = (numbers - 1) % self.capacity
        values = self._values[places] if columns is None else self._values[np.ix_(places, columns)]
        return numbers, self._time[places], values


EVENTS = 10_000  # the most events that a store keeps
MOST_BYTES = 128 << 20
"""The most memory that the rows take: a long history of a large machine is cut short before it harms the training."""
FEWEST = 100  # so many rows are kept at any width
_PAUSES_S = 0.125, 32.0  # shortest and longest between two schemas of pages that differ in their loaders
_QUIET_S = 10.0  # without a change beyond the pause; the next pause is the shortest then
MOST_KNOWN = 100_000  # names of columns that went, whose late values are dropped and no mistake


class Store:
    """A bounded table of measurements, and a bounded list of events; every method is thread-safe.

    The lock is held for the copying of rows and nothing else: no callback, no I/O.
    """

    def __init__(
        self,
        capacity: int = 6000,  # the most rows that are kept: ten minutes at 10 Hz
        *,
        interval: float = 0.1,  # seconds between rows until the first hello
        origin: float | None = None,  # wall clock (Unix seconds) at `time == 0`; None: now
        events: int = EVENTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.steps = StepLog()  # the newest of all loaders, thread-safe on its own
        self._lock = Lock()
        self._ring = Ring(capacity)
        self._wanted = capacity
        self._most_bytes = most_bytes
        self._host_series: tuple[Series, ...] = ()
        self._known: set[str] = set()
        self._events: deque[dict[str, Any]] = deque(maxlen=events)
        self._last_event = 0
        origin = clock.time() if origin is None else origin
        self._schema = Schema(version=0, interval=interval, origin=origin, capacity=capacity)
        self._page_part_of = self._schema
        self._page_due = self._page_pause = 0.0  # time.monotonic; s
        self._page_part_cache: tuple[Schema, npt.NDArray[np.intp]] = (self._schema, np.empty(0, dtype=np.intp))

    @property
    def schema(self) -> Schema:
        """The meaning of the columns now. Version 0 has none yet."""
        return self._schema

    @property
    def page_schema(self) -> Schema:
        """The part of the schema that pages are sent: the series of the charts that are shown, and few others."""
        with self._lock:
            return self._page_part()[0]

    @property
    def last_seq(self) -> int:
        """The newest row's number; 0 when there is none."""
        return self._ring.last_seq

    @property
    def last_event(self) -> int:
        """The newest event's id; 0 when there is none."""
        return self._last_event

    def set_host(self, hello: Mapping[str, Any]) -> Schema:
        """Take the host's columns and facts from a sampler's hello; nothing changes if they are the same.

        Columns that the hello no longer names are dropped with their past. `origin` (Unix seconds at `time == 0`) may
        be given with them. A KeyError if the hello lacks a field.
        """
        series = series_from_json(hello["series"])
        with self._lock:
            return self._change(
                series, origin=float(hello.get("origin", self._schema.origin)), **machine_from_json(hello)
            )

    def set_loaders(self, loaders: Sequence[Mapping[str, Any]]) -> Schema:
        """Set the columns of these loaders (`[{"id", "name", "phased"?}, …]`) and no others.

        Columns of a loader that is left out are dropped with their past. Nothing changes if they are the same.
        """
        infos = loaders_from_json(loaders)
        with self._lock:
            return self._change(self._host_series, loaders=infos)

    def set_nodes(self, nodes: Sequence[Node]) -> Schema:
        """Set the columns of these other machines, and of no others.

        Columns of a node that is left out are dropped with their past. Nothing changes if they are the same.
        """
        with self._lock:
            return self._change(self._host_series, nodes=tuple(nodes))

    def set_ranks(self, ranks: Sequence[Rank]) -> Schema:
        """Set the columns of these ranks, and of no others; as `set_nodes`."""
        with self._lock:
            return self._change(self._host_series, ranks=tuple(ranks))

    def set_charts(self, charts: Sequence[str]) -> Schema:
        """Show these charts (ids of `store.charts`); the rows keep every series."""
        with self._lock:
            return self._change(self._host_series, charts=tuple(charts))

    def set_capacity(self, capacity: int) -> Schema:
        """Keep at most this many rows from now on, fewer if they took more than the store may; the newest stay."""
        if capacity < 1:
            raise ValueError(f"a store needs room for at least one row, not {capacity}")
        with self._lock:
            self._wanted = capacity
            return self._change(self._host_series)

    def append(self, time: float, host_values: npt.ArrayLike, other_values: Mapping[str, float] | None = None) -> int:
        """Add a row at `time` (session s); returns its number: from 1, never reused.

        `host_values` has one value for each series of the hello, in its order, or a ValueError is raised;
        `other_values` has the loaders', nodes' and ranks' by the series' names, NaN for those left out. Those of
        one that has gone in the meantime are dropped; for a name that never was a column a KeyError is raised.
        """
        host = np.asarray(host_values, dtype=np.float32)
        with self._lock:
            if host.shape != (len(self._host_series),):
                raise ValueError(f"{len(self._host_series)} host values are expected, not an array of {host.shape}")
            row = np.full(self._ring.width, np.nan, dtype=np.float32)
            row[: len(host)] = host
            columns = self._schema.columns
            places: list[int] = []
            values: list[float] = []
            for name, value in (other_values or {}).items():
                column = columns.get(name)
                if column is not None:
                    places.append(column)
                    values.append(value)
                elif name not in self._known:
                    raise KeyError(name)
            if places:
                row[places] = values  # at once: of many ranks and machines there are a thousand
            return self._ring.append(time, row)

    def add_event(self, kind: str, time: float, **fields: Any) -> dict[str, Any]:
        """Add an event at `time` (session s); returns it as readers get it.

        `fields` must be JSON-able; `id` (from 1, never reused), `kind` and `time` are the store's own.
        """
        if "id" in fields:
            raise ValueError("the store gives events their id")
        with self._lock:
            self._last_event += 1
            event = {"id": self._last_event, "kind": kind, "time": time, **fields}
            self._events.append(event)
        return dict(event)

    def rows(self, since_seq: int = 0, charts: Sequence[str] | None = None) -> Rows:
        """Return the rows after number `since_seq` that are still kept, oldest first, as copies.

        With `charts`, only the series that pages with these charts are sent.
        """
        with self._lock:
            schema, columns = (self._schema, None) if charts is None else _part(self._schema, charts)
            return Rows(schema, *self._ring.since(since_seq, columns))

    def seq_before(self, time: float) -> int:
        """Return the number of the last kept row that is not later than `time` (s since the session began), or 0."""
        with self._lock:
            seq, times = self._ring.times()
        place = int(np.searchsorted(times, time, side="right"))
        return int(seq[place - 1]) if place else 0

    def page_rows(self, since_seq: int = 0) -> Rows:
        """Return the rows after number `since_seq` as pages get them: with the series of `page_schema`."""
        with self._lock:
            schema, columns = self._page_part()
            seq, time, values = self._ring.since(since_seq, columns)
        values[:, columns < 0] = np.nan
        return Rows(schema, seq, time, values)

    def newest_page_row(self) -> tuple[int, npt.NDArray[np.float32]]:
        """Return the version of `page_schema`, and a copy of the newest row's values of its series."""
        with self._lock:
            schema, columns = self._page_part()
            values = self._ring.newest[columns]
        values[columns < 0] = np.nan
        return schema.version, values

    def events(self, since_id: int = 0) -> list[dict[str, Any]]:
        """Return the events after id `since_id` that are still kept, oldest first, as copies."""
        with self._lock:
            return [dict(event) for event in self._events if event["id"] > since_id]

    def snapshot(self, loaders: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Snapshot:
        """Return the rows, events and steps at this moment, with the caller's loader states and facts."""
        with self._lock:
            rows = (self._schema, *self._ring.since(0))
            events = [dict(event) for event in self._events]
        return Snapshot(*rows, events, [dict(loader) for loader in loaders], dict(facts), self.steps.table())

    def _change(self, host_series: tuple[Series, ...], **changes: Any) -> Schema:
        """Put a changed schema in place; the lock is held."""
        loaders, nodes, ranks = (changes.get(key, getattr(self._schema, key)) for key in ("loaders", "nodes", "ranks"))
        series = host_series + loader_series(loaders) + nodes_series(nodes) + ranks_series(ranks)
        fitting = max(FEWEST, self._most_bytes // (4 * max(1, len(series))))
        changed = replace(self._schema, series=series, capacity=min(self._wanted, fitting), **changes)
        if changed == self._schema:
            self._schema = changed  # fields that equality ignores may differ
        else:
            changed = replace(changed, version=self._schema.version + 1)
            if len(changed.columns) != len(changed.series):
                raise ValueError(f"series must have names of their own: {', '.join(changed.names)}")
            if changed.capacity < self._ring.capacity:
                self._ring.resize(changed.capacity)  # before the rows become wider
            if changed.names != self._schema.names:
                self._ring.rename(changed.names)
            if changed.capacity > self._ring.capacity:
                self._ring.resize(changed.capacity)
            if len(self._known) > MOST_KNOWN:  # names of machines and ranks that went long ago
                self._known = set(self._schema.names)
            self._known.update(changed.names)
            self._host_series = host_series
            self._schema = changed
        return self._schema

    def _page_part(self) -> tuple[Schema, npt.NDArray[np.intp]]:
        """Return the part of the schema that pages are sent, and its columns in the ring; the lock is held.

        Pages build all charts anew for another schema. So loaders in quick succession are shown together, after pauses
        that double while they go on; of a loader that went meanwhile the column is -1.
        """
        schema = self._schema
        if self._page_part_of is not schema:
            if _same_but_loaders(self._page_part_of, schema):
                rested = clock.monotonic() - self._page_due
                if rested < 0:
                    part = self._page_part_cache[0]
                    return part, np.array([schema.columns.get(name, -1) for name in part.names], dtype=np.intp)
                pause = self._page_pause
                self._page_pause = _PAUSES_S[0] if rested >= _QUIET_S else min(_PAUSES_S[1], 2 * pause)
                self._page_due = clock.monotonic() + self._page_pause
            self._page_part_of = schema
            self._page_part_cache = _part(schema, schema.charts or DEFAULT_CHARTS)
        return self._page_part_cache


def _same_but_loaders(one: Schema, other: Schema) -> bool:
    """Return whether nothing but the loaders differs between two schemas of a session that has columns."""
    series = [tuple(s for s in schema.series if not s.name.startswith("loader/")) for schema in (one, other)]
    rest = [replace(schema, version=0, loaders=(), series=()) for schema in (one, other)]
    return bool(one.loaders) and series[0] == series[1] and rest[0] == rest[1]


def _part(schema: Schema, charts: Sequence[str]) -> tuple[Schema, npt.NDArray[np.intp]]:
    """Return the part of the schema that pages with these charts are sent, and its columns in the whole schema."""
    part = schema.restricted(set(page_series(schema, charts)))
    return part, np.array([schema.columns[name] for name in part.names], dtype=np.intp)
