"""The rows of a session's file as one table, whatever series came and went."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .decode import Chunk, Damaged, Floats, Tail
from .format import HOST, LOADERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Stored(NamedTuple):
    """A run of rows in the file: in which table, under which number, of which layout, from when to when, how many."""

    table: str
    id: int
    layout: int
    first: float
    last: float
    rows: int


@dataclass
class Layouts:
    """The series of all layouts, the newest hello's first, then those that went, then the loaders'.

    Attributes:
        kinds: what each layout is for.
        names: its series.
        units: of every series.
        order: all series, once each.
        hello: the newest, without its series.
    """

    kinds: dict[int, str] = field(default_factory=dict)
    names: dict[int, list[str]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    hello: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Layouts:
        """Of the session that `connection` has open."""
        found = cls()
        for number, kind, text in connection.execute("SELECT id, kind, series FROM layouts ORDER BY id"):
            series = json.loads(text)
            found.kinds[number] = kind
            found.names[number] = [name for name, _ in series]
            found.units.update((name, unit) for name, unit in series)
        row = connection.execute("SELECT layout, hello FROM hellos ORDER BY id DESC LIMIT 1").fetchone()
        newest = [] if row is None else [row[0]]
        if row is not None:
            found.hello = json.loads(row[1])
        older = sorted(found.kinds.keys() - set(newest), reverse=True)
        hosts = [number for number in older if found.kinds[number] == HOST]
        loaders = sorted(found.kinds.keys() - set(hosts) - set(newest))
        found.order = list(
            dict.fromkeys(name for number in [*newest, *hosts, *loaders] for name in found.names[number])
        )
        return found

    def places(self, layout: int, series: Sequence[str]) -> npt.NDArray[np.intp]:
        """For each column of a layout its place among `series`, -1 where it is not wanted."""
        where = {name: place for place, name in enumerate(series)}
        return np.array([where.get(name, -1) for name in self.names[layout]], dtype=np.intp)


class Table:
    """What one read transaction sees of a session's rows.

    Args:
        connection: in a transaction.
        damage: told in words about each part that cannot be read; it is missing from what is returned.
    """

    def __init__(self, connection: sqlite3.Connection, damage: list[str]) -> None:
        self.connection = connection
        self.damage = damage
        self.layouts = Layouts.read(connection)

    def stored(self, kind: str, start: float | None = None, end: float | None = None) -> list[Stored]:
        """The runs of a kind's rows that touch [start, end], by their times."""
        found: list[Stored] = []
        for table in ("chunks", "tail"):
            try:
                for row in self.connection.execute(f"SELECT id, layout, first, last, n FROM {table} ORDER BY id"):  # noqa: S608
                    found.append(Stored(table, *row))  # noqa: PERF401 - what was read before an error counts
            except sqlite3.DatabaseError as error:
                self.damage.append(f"the list of {table}: {error}")
        low = float("-inf") if start is None else start
        high = float("inf") if end is None else end
        wanted = [
            run for run in found if self.layouts.kinds.get(run.layout) == kind and run.last >= low and run.first <= high
        ]
        return sorted(wanted, key=lambda run: (run.first, run.id))

    def load(self, run: Stored) -> Chunk | Tail:
        """One run.

        Raises:
            Damaged: it cannot be read.
        """
        try:
            row = self.connection.execute(f"SELECT data FROM {run.table} WHERE id = ?", (run.id,)).fetchone()  # noqa: S608
        except sqlite3.DatabaseError as error:
            raise Damaged(str(error)) from error
        if run.table == "tail":
            found: Chunk | Tail = Tail(row[0], run.rows, len(self.layouts.names[run.layout]))
        else:
            found = Chunk(row[0])
        if len(found.times) != run.rows:
            raise Damaged(f"{len(found.times)} rows in place of {run.rows}")
        return found

    def blocks(
        self, kind: str, series: Sequence[str], start: float | None = None, end: float | None = None
    ) -> Iterator[tuple[npt.NDArray[np.float64], Floats]]:
        """Rows, run by run: times[n], values[len(series), n], NaN where a series did not exist."""
        for run in self.stored(kind, start, end):
            values = np.full((len(series), run.rows), np.nan, dtype=np.float32)
            times = self._fill(run, series, values)
            if times is not None:
                keep = _within(times, start, end)
                yield (times, values) if keep is None else (times[keep], values[:, keep])

    def rows(
        self, series: Sequence[str], start: float | None = None, end: float | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Floats]:
        """The host's rows with the loaders' values beside them: numbers[n] from 0, times[n], values[len(series), n]."""
        runs = self.stored(HOST, start, end)
        total = sum(run.rows for run in runs)
        numbers = np.zeros(total, dtype=np.int64)
        times = np.full(total, np.nan)
        values = np.full((len(series), total), np.nan, dtype=np.float32)
        at = 0
        before = 0 if start is None else sum(run.rows for run in self.stored(HOST) if run.last < start)
        for run in runs:
            found = self._fill(run, series, values[:, at : at + run.rows])
            if found is not None:
                times[at : at + run.rows] = found
                numbers[at : at + run.rows] = before + np.arange(run.rows)
                at += run.rows
            before += run.rows
        numbers, times, values = numbers[:at], times[:at], values[:, :at]
        keep = _within(times, start, end)
        if keep is not None:
            numbers, times, values = numbers[keep], times[keep], values[:, keep]
        self._join_loaders(series, times, values)
        return numbers, times, values

    def _join_loaders(self, series: Sequence[str], times: npt.NDArray[np.float64], values: Floats) -> None:
        """Put the loaders' values beside the frames of the same times."""
        places = [place for place, name in enumerate(series) if name.startswith("loader/")]
        if not places or len(times) == 0:
            return
        wanted = [series[place] for place in places]
        apart = 0.5 * float(self.layouts.hello.get("interval", 0.1))
        for moments, found in self.blocks(LOADERS, wanted, times[0] - apart, times[-1] + apart):
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
            found.fill(out, self.layouts.places(run.layout, series))
        except Damaged as error:
            self.damage.append(f"{run.rows} rows from {run.first:.1f} s to {run.last:.1f} s: {error}")
            out[:] = np.nan
            return None
        return found.times


def _within(times: npt.NDArray[np.float64], start: float | None, end: float | None) -> npt.NDArray[np.bool_] | None:
    """Which rows are in [start, end]; None for all."""
    keep = np.ones(len(times), dtype=bool)
    if start is not None:
        keep &= times >= start
    if end is not None:
        keep &= times <= end
    return None if keep.all() else keep
