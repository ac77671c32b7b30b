"""The steps of a session's file as one table."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_monitor.store import STEP, StepTable

from . import decode
from .decode import Damaged
from .format import format_of

if TYPE_CHECKING:
    import numpy.typing as npt

MOST = 500_000
"""Steps that are read for a report; of more, every so many-th."""


def read(connection: sqlite3.Connection, damage: list[str], most: int | None = None) -> StepTable:
    """All steps by their ends.

    Args:
        connection: to the session, in a transaction.
        damage: told in words about each part that cannot be read, which is left out.
        most: of more steps, evenly chosen ones are given, so many at most; the others count as dropped.
    """
    version = format_of(connection)
    loaders: dict[str, int] = {}
    found: list[npt.NDArray[Any]] = []
    dropped = 0
    for loader, lost, rows in _batches(connection, version, damage):
        dropped += lost
        part = np.zeros(len(rows), dtype=STEP)
        part["loader"] = loaders.setdefault(loader, len(loaders))
        for name in decode.STEP_FIELDS:
            part[name] = rows[name]
        found.append(part)
    whole = np.concatenate(found) if found else np.empty(0, dtype=STEP)
    placed = np.isfinite(whole["end"])
    if not placed.all():
        damage.append(f"{int((~placed).sum())} steps without a time")
        whole = whole[placed]
    whole = whole[np.argsort(whole["end"], kind="stable")]
    if most is not None and len(whole) > most:
        dropped += len(whole) - most
        whole = whole[np.arange(most) * len(whole) // most]
    return StepTable(loaders=tuple(loaders), rows=whole, dropped=dropped)


def _batches(
    connection: sqlite3.Connection, version: int, damage: list[str]
) -> list[tuple[str, int, npt.NDArray[Any]]]:
    """Each batch that can be read: its loader, the steps that were not kept, the steps."""
    found: list[tuple[str, int, npt.NDArray[Any]]] = []
    try:
        for number, loader, count, dropped, packed, data in connection.execute(
            "SELECT id, loader, n, dropped, packed, data FROM steps ORDER BY id"
        ):
            try:
                rows = decode.steps(data, count, packed=bool(packed), version=version)
            except Damaged as error:
                damage.append(f"{count} steps of {loader} (batch {number}): {error}")
            else:
                found.append((str(loader), int(dropped), rows))
    except sqlite3.DatabaseError as error:
        damage.append(f"the list of steps: {error}")
    return found
