"""The one store of a session: one writer, any number of readers, each with a cursor of its own."""

from __future__ import annotations

import time as clock
from collections import deque
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .ring import Ring
from .schema import LoaderInfo, Schema, Series, gpus_from_json, loader_series, series_from_json
from .snapshot import Rows, Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVENTS = 10_000
"""The most events that a store keeps."""


class Store:
    """A bounded table of what was measured, and a bounded list of what happened; every method is thread-safe.

    The lock is held for the copying of rows and nothing else: no callback, no I/O.

    Args:
        capacity: the most rows that are kept (6,000 rows are ten minutes at 10 Hz).
        interval: seconds between rows until the sampler's hello says otherwise.
        origin: wall clock (Unix seconds) at `time == 0`; now, if not given.
        events: the most events that are kept.
    """

    def __init__(
        self, capacity: int = 6000, *, interval: float = 0.1, origin: float | None = None, events: int = EVENTS
    ) -> None:
        self._lock = Lock()
        self._ring = Ring(capacity)
        self._host_series: tuple[Series, ...] = ()
        self._known: set[str] = set()
        self._events: deque[dict[str, Any]] = deque(maxlen=events)
        self._last_event = 0
        self._schema = Schema(
            version=0,
            interval=interval,
            origin=clock.time() if origin is None else origin,
            capacity=capacity,
        )

    @property
    def schema(self) -> Schema:
        """The meaning of the columns now. Version 0 has none yet."""
        return self._schema

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
        be given with them.

        Raises:
            KeyError: the hello lacks a field.
        """
        series = series_from_json(hello["series"])
        with self._lock:
            return self._change(
                series,
                origin=float(hello.get("origin", self._schema.origin)),
                interval=float(hello["interval"]),
                cpus=tuple(int(number) for number in hello["cpus"]),
                gpus=gpus_from_json(hello["gpus"]),
                gpu_reason=hello["gpu_reason"],
                host=dict(hello["host"]),
            )

    def set_loaders(self, loaders: Sequence[Mapping[str, str]]) -> Schema:
        """Have columns for these loaders (`[{"id", "name"}, …]`) and no others; nothing changes if they are the same.

        Columns of a loader that is left out are dropped with their past.
        """
        infos = tuple(LoaderInfo(id=entry["id"], name=entry["name"]) for entry in loaders)
        with self._lock:
            return self._change(self._host_series, loaders=infos)

    def append(self, time: float, host_values: npt.ArrayLike, loader_values: Mapping[str, float] | None = None) -> int:
        """Add a row.

        Args:
            time: seconds since the session began.
            host_values: one value for each series of the hello, in its order (any array or buffer of numbers).
            loader_values: values by the series' names; series left out are NaN. Those of a loader that has gone in
                the meantime are dropped.

        Returns:
            The row's number: from 1, never reused.

        Raises:
            ValueError: the host's values are not as many as its series.
            KeyError: a name that never was a column.
        """
        host = np.asarray(host_values, dtype=np.float32)
        with self._lock:
            if host.shape != (len(self._host_series),):
                raise ValueError(f"{len(self._host_series)} host values are expected, not an array of {host.shape}")
            row = np.full(self._ring.width, np.nan, dtype=np.float32)
            row[: len(host)] = host
            columns = self._schema.columns
            for name, value in (loader_values or {}).items():
                column = columns.get(name)
                if column is not None:
                    row[column] = value
                elif name not in self._known:
                    raise KeyError(name)
            return self._ring.append(time, row)

    def add_event(self, kind: str, time: float, **fields: Any) -> dict[str, Any]:
        """Note that something happened `time` seconds into the session; returns the event as readers get it.

        `fields` must be JSON-able; `id` (from 1, never reused), `kind` and `time` are the store's own.
        """
        if "id" in fields:
            raise ValueError("the store gives events their id")
        with self._lock:
            self._last_event += 1
            event = {"id": self._last_event, "kind": kind, "time": time, **fields}
            self._events.append(event)
        return dict(event)

    def rows(self, since_seq: int = 0) -> Rows:
        """The rows after number `since_seq` that are still kept, oldest first, as copies."""
        with self._lock:
            schema = self._schema
            seq, time, values = self._ring.since(since_seq)
        return Rows(schema=schema, seq=seq, time=time, values=values)

    def events(self, since_id: int = 0) -> list[dict[str, Any]]:
        """The events after id `since_id` that are still kept, oldest first, as copies."""
        with self._lock:
            return [dict(event) for event in self._events if event["id"] > since_id]

    def snapshot(self, loaders: list[dict[str, Any]], facts: Mapping[str, Any]) -> Snapshot:
        """Everything at this moment, rows and events of one instant, with the caller's loader states and facts."""
        with self._lock:
            schema = self._schema
            seq, time, values = self._ring.since(0)
            events = [dict(event) for event in self._events]
        return Snapshot(
            schema=schema, seq=seq, time=time, values=values, events=events, loaders=list(loaders), facts=dict(facts)
        )

    def _change(self, host_series: tuple[Series, ...], **changes: Any) -> Schema:
        """Put a changed schema in place; the lock is held."""
        loaders = changes.get("loaders", self._schema.loaders)
        changed = replace(self._schema, series=host_series + loader_series(loaders), **changes)
        if changed != self._schema:
            changed = replace(changed, version=self._schema.version + 1)
            if len(changed.columns) != len(changed.series):
                raise ValueError(f"series must have names of their own: {', '.join(changed.names)}")
            if changed.names != self._schema.names:
                self._ring.rename(changed.names)
            self._known.update(changed.names)
            self._host_series = host_series
            self._schema = changed
        return self._schema
