"""The rows of a session's file, unpacked with NumPy, as one table over all its layouts; and its steps as another."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernel_monitor.steps.measured_step import PHASES
from kernel_monitor.store import STEP as STEP_ROW
from kernel_monitor.store import StepTable

from .codec import TABLE_LIMIT, families
from .format import (
    BLOCK_VALUES,
    BLOCKS,
    EPOCHS,
    HOST,
    INTEGER,
    MAGNITUDE,
    MOST_LOADERS,
    NAME,
    SESSION_S,
    STEP,
    STEPS,
    STEPS_BLOCK,
    kind_of,
)
from .session_facts import Stored, read_hello, read_layouts, read_rows, stored

# ---- Unpacks the rows that `codec` packed, and steps, with NumPy: whole families of columns at a time.

_STORED_STEP = np.dtype(STEP_ROW.descr[1:])  # without the loader's number
STEP_FIELDS = _STORED_STEP.names or ()
_LONGEST_S = 1e7  # longer than any step, by months

Floats = npt.NDArray[np.float32]


class Damaged(ValueError):
    """The error for bytes that are not as the recorder writes them."""


class Chunk:
    """Packed rows: `times`, float64[n], session seconds; `missed`, uint32[n]. Raises Damaged if they are not whole.

    Args:
        data: as the recorder packed them.
        rows: how many, by the file's list of them.
        width: columns of their layout.
        families: of those columns, as the recorder makes them.
    """

    def __init__(self, data: bytes, rows: int, width: int, families: int) -> None:
        try:
            if rows * width > BLOCK_VALUES:
                raise ValueError(f"{rows:,} rows of {width:,} columns are more than any block has")
            # The head; times and missed deadlines; per value: itself, its place in a table and in a pattern.
            text = inflate(data, 4096 + 64 * width + 12 * rows + 9 * rows * width)
            (length,) = struct.unpack_from("<I", text)
            head = json.loads(text[4 : 4 + length])
            self._bytes = np.frombuffer(text, dtype=np.uint8)
            self._rows = rows
            if head["rows"] != rows:
                raise ValueError(f"{head['rows']!r:.20} rows in place of {rows}")
            self._families = _families(head["families"], width)
            if len(self._families) > families:
                raise ValueError(f"{len(self._families):,} families of columns in place of {families:,}")
            self._at = 4 + length
            self.times = self._planes(1, self._rows, 8, "<f8")[0]
            self.missed = self._planes(1, self._rows, 4, "<u4")[0]
            self._patterns = [self._take(self._rows).astype(bool) for _ in range(_whole(head["patterns"], 0, families))]
        except (zlib.error, struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def fill(self, out: Floats, places: npt.NDArray[np.intp]) -> None:
        """Put the values into `out`, float32[k, n]: column c of the layout into row `places[c]`, none where that is -1.

        Raises Damaged if they are not whole.
        """
        try:
            for columns, values in self._values(places):
                rows = places[columns]
                wanted = rows >= 0
                out[rows[wanted]] = values[wanted]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def _values(self, places: npt.NDArray[np.intp]) -> Iterator[tuple[npt.NDArray[np.intp], Floats]]:
        """Yield the columns of each family with a wanted column, and their values float32[columns, n]."""
        for columns, place, table in self._families:
            pattern = self._patterns[place] if place >= 0 else None
            if pattern is not None and not pattern[0]:
                raise ValueError("a pattern without its first row")
            count = self._rows if pattern is None else int(pattern.sum())
            width = 4 if table == 0 else 1 if table <= 256 else 2
            if (places[columns] < 0).all():
                self._take(4 * table + width * count * len(columns))
                continue
            if table == 0:
                cells = self._planes(len(columns), count, 4, "<u4")
            else:
                known = self._planes(1, table, 4, "<u4")[0]
                cells = known[self._planes(len(columns), count, width, "<u1" if width == 1 else "<u2")]
            if pattern is not None:
                cells = cells[:, pattern.cumsum() - 1]
            yield columns, cells.view(np.float32)

    def _take(self, count: int) -> npt.NDArray[np.uint8]:
        if self._at + count > len(self._bytes):
            raise ValueError("it ends too early")
        found = self._bytes[self._at : self._at + count]
        self._at += count
        return found

    def _planes(self, columns: int, count: int, width: int, kind: str) -> npt.NDArray[Any]:
        """Return numbers [columns, count] of `width` bytes that are stored in planes."""
        found = self._take(columns * width * count).reshape(columns, width, count)
        return np.ascontiguousarray(found.transpose(0, 2, 1)).view(kind)[:, :, 0]


class Tail:
    """Rows that are not packed, of `width` columns; the same interface as `Chunk`."""

    def __init__(self, data: bytes, rows: int, width: int) -> None:
        if len(data) != rows * (12 + 4 * width):
            raise Damaged(f"{len(data)} bytes for {rows} rows of {width} columns")
        self.times = np.frombuffer(data, dtype="<f8", count=rows)
        self.missed = np.frombuffer(data, dtype="<u4", count=rows, offset=8 * rows)
        self._values = np.frombuffer(data, dtype="<f4", offset=12 * rows).reshape(rows, width)

    def fill(self, out: Floats, places: npt.NDArray[np.intp]) -> None:
        """Put the values into `out`, as `Chunk.fill` does."""
        wanted = places >= 0
        out[places[wanted]] = self._values.T[wanted]


def unpacked_steps(data: bytes, rows: int, *, packed: bool) -> npt.NDArray[Any]:
    """Return so many steps as `store.STEP`[rows], with 0 for the loader; raise Damaged if they are not whole."""
    try:
        if rows > STEPS_BLOCK:
            raise ValueError("more than any block has")
        if packed:
            planes = np.frombuffer(inflate(data, STEP.size * rows), dtype=np.uint8).reshape(STEP.size, rows)
            data = np.ascontiguousarray(planes.T).tobytes()
        if len(data) != rows * STEP.size:
            raise Damaged(f"{len(data)} bytes for {rows} steps")
        stored = np.frombuffer(data, dtype=_STORED_STEP, count=rows)
    except (zlib.error, ValueError, TypeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    found = np.zeros(rows, dtype=STEP_ROW)
    for name in STEP_FIELDS:
        found[name] = stored[name]
    for name in ("wait", "step", *PHASES):
        found[name][~(np.abs(found[name]) < _LONGEST_S)] = np.nan
    found["end"][~(np.abs(found["end"]) <= SESSION_S)] = np.nan
    return found


def inflate(data: bytes, most: int) -> bytes:
    """Unpack a zlib stream; a ValueError or zlib.error if it is not whole, or more than `most` bytes."""
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, most + 1)
    if len(text) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes")
    if not unpacker.eof:
        raise ValueError("it ends too early")
    return text


def _families(listed: Any, width: int) -> list[tuple[npt.NDArray[np.intp], int, int]]:
    """Return the columns, the pattern's place (-1: none) and the table's length of each family: every column once."""
    found = []
    left = set(range(width))
    for family in listed:
        columns = [_whole(column, 0, width - 1) for column in family["columns"]]
        if not columns or not left.issuperset(columns) or len(set(columns)) < len(columns):
            raise ValueError("a column that is there twice")
        left.difference_update(columns)
        pattern, table = _whole(family["pattern"], -1, width), _whole(family["table"], 0, TABLE_LIMIT)
        found.append((np.array(columns, dtype=np.intp), pattern, table))
    return found


def _whole(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value!r:.20} is not between {least} and {most}")
    return value


# ---- The rows of all layouts as one table.

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
        """Return the runs of a kind's rows that touch [start, end], by their times."""
        return [run for run in self._runs.get(kind, []) if run.last >= start and run.first <= end]

    def cost(self, wanted: int, start: float = -math.inf, end: float = math.inf) -> int:
        """Return the cost of decoding `wanted` series of all runs that touch [start, end], in values."""
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
        """Return one run of rows; raise Damaged if it cannot be read."""
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
        """Yield rows, run by run: times[n], values[len(series), n], NaN where a series did not exist."""
        for run in self.stored(kind, start, end):
            values = np.full((len(series), run.rows), np.nan, dtype=np.float32)
            times = self._fill(run, series, values)
            if times is not None:
                keep = (times >= start) & (times <= end)
                yield (times, values) if keep.all() else (times[keep], values[:, keep])

    def rows(
        self, series: Sequence[str], start: float = -math.inf, end: float = math.inf
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], Floats]:
        """Return the host's rows, joined with the others' values: numbers[n] from 0, times[n], values[series, n]."""
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
        """Return, for each kind of rows that the file has beside the host's, the places in `series` of its series."""
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
        """Return, for each column of a layout, its place in `series` (-1: not wanted); cached for one `series`."""
        if self._series is not series:
            self._series, self._places = series, {}
            self._where = {name: place for place, name in enumerate(series)}
        if layout not in self._places:
            names = self.layouts.names[layout]
            self._places[layout] = np.array([self._where.get(name, -1) for name in names], dtype=np.intp)
        return self._places[layout]


def read_steps(connection: sqlite3.Connection, damage: list[str], most: int | None = None) -> StepTable:
    """Return all steps by their ends; what cannot be read is left out and described in `damage`.

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
            rows = unpacked_steps(_data(connection, "steps", batch.id), batch.steps, packed=bool(batch.packed))
        except Damaged as error:
            damage.append(f"{batch.steps} steps of {batch.loader} (batch {batch.id}): {error}")
            continue
        rows["loader"] = loaders.setdefault(batch.loader, len(loaders))
        found.append(rows)
    whole = np.concatenate(found) if found else np.empty(0, dtype=STEP_ROW)
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
    """A row of the file's table `steps`: `dropped` steps before these were not kept; `packed`: see `unpacked_steps`."""

    id: int
    loader: str
    steps: int
    dropped: int
    packed: int


def _batches(connection: sqlite3.Connection, damage: list[str]) -> list[_Batch]:
    """Return the batches of the newest loaders, in their order; malformed ones are left out."""
    found: list[_Batch] = []
    loaders: set[str] = set()
    left_out = others = 0
    newest = f"ORDER BY id DESC LIMIT {BLOCKS}"
    for row in read_rows(connection, "steps", "id, loader, n, dropped, packed", newest, damage):
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
    """Return the bytes of a row. Raises Damaged."""
    try:
        row = connection.execute(f"SELECT data FROM {table} WHERE id = ?", (number,)).fetchone()  # noqa: S608
    except sqlite3.DatabaseError as error:
        raise Damaged(str(error)) from error
    data = None if row is None else row[0]
    if not isinstance(data, bytes):
        raise Damaged("its bytes are not there")
    return data
