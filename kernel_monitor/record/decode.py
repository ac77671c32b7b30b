"""Unpacks the rows that `codec` packed, and steps, with NumPy: whole families of columns at a time."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.steps.measured_step import PHASES
from kernel_monitor.store import STEP as STEP_ROW

from .codec import TABLE_LIMIT
from .format import BLOCK_VALUES, SESSION_S, STEP, STEPS_BLOCK

_STORED_STEP = np.dtype(STEP_ROW.descr[1:])  # without the loader's number
STEP_FIELDS = _STORED_STEP.names or ()
_LONGEST_S = 1e7  # longer than any step, by months

Floats = npt.NDArray[np.float32]


class Damaged(ValueError):
    """Bytes that are not what the recorder writes."""


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
        """The columns of each family with a wanted column, and their values float32[columns, n]."""
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
        """Numbers [columns, count] of `width` bytes that are stored in planes."""
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
        """As `Chunk.fill`."""
        wanted = places >= 0
        out[places[wanted]] = self._values.T[wanted]


def steps(data: bytes, rows: int, *, packed: bool) -> npt.NDArray[Any]:
    """So many steps as an array of `store.STEP`, with 0 for the loader. Raises Damaged if they are not whole."""
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
    """Columns, place of the pattern (-1: none) and length of the table of each family: every column once."""
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
