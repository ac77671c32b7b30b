"""The list of a session's blocks of rows, by which a read is planned before anything is unpacked."""

from __future__ import annotations

import math
import sqlite3
from typing import NamedTuple

from .file_limits import BLOCK_COST, BLOCK_ROWS, BLOCKS, FAMILY_COST, SESSION_S
from .format import HOST


class Stored(NamedTuple):
    """A run of rows in the file: a row of its `table` (`chunks` or `tail`), from session time `first` to `last`."""

    table: str
    id: int
    layout: int
    first: float
    last: float
    rows: int

    def cost(self, width: int, families: int, wanted: int) -> int:
        """The cost of decoding it, in values (`file_limits`).

        Args:
            width: series of its layout, all of which are unpacked.
            families: of them (`codec`), each of which is unpacked separately.
            wanted: series that the result has.
        """
        return self.rows * (wanted + width // 4 + 4) + FAMILY_COST * families + BLOCK_COST


def stored(connection: sqlite3.Connection, damage: list[str]) -> list[Stored]:
    """All runs of a session's file, by their times; malformed ones are described in `damage` and left out."""
    found: list[Stored] = []
    for table in ("chunks", "tail"):
        left_out = 0
        try:
            for row in connection.execute(
                f"SELECT id, layout, first, last, n FROM {table} ORDER BY id LIMIT ?",  # noqa: S608
                (BLOCKS + 1,),
            ):
                if _is_run(*row):
                    found.append(Stored(table, row[0], row[1], float(row[2]), float(row[3]), row[4]))
                else:
                    left_out += 1
        except sqlite3.DatabaseError as error:  # the runs read before it count
            damage.append(f"the list of {table}: {error}")
        if left_out:
            damage.append(f"{left_out} {table} whose times or counts are impossible")
    if len(found) > BLOCKS:
        damage.append(f"the blocks after the first {BLOCKS:,}")
        del found[BLOCKS:]
    return sorted(found, key=lambda run: (run.first, run.id))


def ends(connection: sqlite3.Connection) -> tuple[float, float]:
    """Session times of the oldest and the newest of the host's rows; NaN where there is none.

    Raises:
        sqlite3.DatabaseError: the list of rows cannot be read.
    """
    hosts = {number for number, kind in connection.execute("SELECT id, kind FROM layouts LIMIT 100000") if kind == HOST}
    runs = [run for run in stored(connection, []) if run.layout in hosts]
    if not runs:
        return math.nan, math.nan
    return runs[0].first, max(run.last for run in runs)


def _is_run(number: object, layout: object, first: object, last: object, rows: object) -> bool:
    return (
        isinstance(number, int)
        and isinstance(layout, int)
        and isinstance(first, int | float)
        and isinstance(last, int | float)
        and isinstance(rows, int)
        and -SESSION_S <= first <= last <= SESSION_S
        and 0 < rows <= BLOCK_ROWS
    )
