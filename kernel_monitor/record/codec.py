"""Rows of float32 as a few bytes, without loss and without NumPy: the sampler writes with this.

A chunk is a zlib stream of `<u4 length><head, JSON><sections>`. The columns are sorted into *families*, the names that
differ in numbers only (`cpu/<n>/busy`): the members of a family are read at the same moments and take similar values.

* A family that is held over several rows is stored by its changes: a *pattern* of n bytes marks the rows in which any
  of its columns changed (the first row counts), and only the values of those rows follow.
* A family with at most 256 different values has a table of them, sorted, and one byte per value; a family with at
  most 4,096, and four times as many values, two bytes; the others are stored as they are.
* Numbers of several bytes are stored in planes, all lowest bytes first: neighbours differ least in the highest ones.

Sections: the rows' times (8 planes), the missed deadlines (4 planes), the patterns, then each family's table (4 planes)
and values, column after column. Everything is little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Generator, Sequence
from itertools import compress
from operator import ne
from typing import Any

LEVEL = 6
TABLE_LIMIT = 4096  # different values of a family, beyond which a table is not worth its making
_HELD = 0.5  # a family that changes in fewer of its rows is stored by its changes


def planes(data: bytes, width: int) -> list[bytes]:
    """Return the lowest bytes of all numbers of `width` bytes, then the next ones."""
    return [data[place::width] for place in range(width)]


def families(names: Sequence[str]) -> list[list[int]]:
    """Return the columns of each family, in order."""
    found: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        key = "/".join(part for part in name.split("/") if not part.isdecimal())
        found.setdefault(key, []).append(column)
    return list(found.values())


def encode(names: Sequence[str], times: bytes, missed: bytes, values: bytes) -> Generator[None, None, bytes]:
    """Encode rows in pieces: a generator that returns the chunk, between whose pieces the caller may do other work.

    Of the m columns of `names`: times, float64[n], s; missed, uint32[n]; values, float32[n, m], row after row.
    """
    rows, width = len(times) // 8, len(names)
    cells = array("I")
    cells.frombytes(values)
    head: list[dict[str, Any]] = []
    patterns: dict[bytes, int] = {}
    body: list[bytes] = []
    for members in families(names):
        columns = []
        changed = 0
        for column in members:
            cell = cells[column::width]
            columns.append(cell)
            changed |= int.from_bytes(bytes(map(ne, cell[1:], cell)), "little")
            yield
        pattern = b"\1" + changed.to_bytes(rows - 1, "little")
        place = -1
        if pattern.count(1) < _HELD * rows:
            place = patterns.setdefault(pattern, len(patterns))
            columns = [array("I", compress(cell, pattern)) for cell in columns]
            yield
        entry: dict[str, Any] = {"columns": members, "pattern": place}
        different: set[int] = set()
        for cell in columns:
            different.update(cell)
            yield
            if len(different) > TABLE_LIMIT:
                break
        table = sorted(different)
        count = len(columns) * len(columns[0])
        if len(table) <= 256 or (len(table) <= TABLE_LIMIT and 4 * len(table) <= count):
            entry["table"] = len(table)
            where = {value: index for index, value in enumerate(table)}.__getitem__
            body += planes(array("I", table).tobytes(), 4)
            for cell in columns:
                places = map(where, cell)
                body += [bytes(places)] if len(table) <= 256 else planes(array("H", places).tobytes(), 2)
                yield
        else:
            entry["table"] = 0
            for cell in columns:
                body += planes(cell.tobytes(), 4)
                yield
        head.append(entry)
    text = json.dumps({"rows": rows, "patterns": len(patterns), "families": head}, separators=(",", ":")).encode()
    packer = zlib.compressobj(LEVEL)
    out = [packer.compress(struct.pack("<I", len(text)) + text)]
    for part in [*planes(times, 8), *planes(missed, 4), *patterns, *body]:
        out.append(packer.compress(part))
        yield
    out.append(packer.flush())
    return b"".join(out)
