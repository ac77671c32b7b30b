"""The steps of a session's file as one table."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernel_monitor.store import STEP, StepTable

from . import decode
from .decode import Damaged
from .format import format_of
from .limits import BLOCKS, EPOCHS, INTEGER, LOADERS, NAME, STEPS, STEPS_BLOCK

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
    batches = _listed(connection, damage)
    # Batches first, so that a long session takes no more time than it must; then steps.
    stride = 1 if most is None else max(1, -(-sum(one.steps for one in batches) // STEPS))
    loaders: dict[str, int] = {}
    found: list[npt.NDArray[Any]] = []
    dropped = sum(one.dropped for one in batches)
    for place, batch in enumerate(batches):
        if place % stride:
            dropped += batch.steps
            continue
        try:
            rows = _load(connection, batch, version)
        except (Damaged, sqlite3.DatabaseError) as error:
            damage.append(f"{batch.steps} steps of {batch.loader} (batch {batch.id}): {error}")
            continue
        part = np.zeros(len(rows), dtype=STEP)
        part["loader"] = loaders.setdefault(batch.loader, len(loaders))
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
    if most is not None:
        numbers = whole["loader"].astype(np.int64) << 32 | whole["epoch"]
        epochs, which = np.unique(numbers, return_inverse=True)
        if len(epochs) > EPOCHS:
            newest = np.zeros(len(epochs), dtype=bool)
            newest[np.argsort(_last(which, whole["end"], len(epochs)))[-EPOCHS:]] = True
            damage.append(f"the steps of all but the newest {EPOCHS:,} epochs")
            dropped += int((~newest[which]).sum())
            whole = whole[newest[which]]
    return StepTable(loaders=tuple(loaders), rows=whole, dropped=dropped)


def _last(which: npt.NDArray[Any], ends: npt.NDArray[np.float64], epochs: int) -> npt.NDArray[np.float64]:
    """The last end of a step in each epoch; the steps are in the order of their ends."""
    found = np.zeros(epochs)
    found[which] = ends
    return found


def count(connection: sqlite3.Connection) -> int:
    """How many steps there are."""
    return sum(one.steps for one in _listed(connection, []))


class _Batch(NamedTuple):
    """Steps in the file: under which number, whose, how many, how many were not kept, and whether they are packed."""

    id: int
    loader: str
    steps: int
    dropped: int
    packed: int


def _listed(connection: sqlite3.Connection, damage: list[str]) -> list[_Batch]:
    """The batches of the newest loaders, in their order; what cannot be one is left out."""
    found: list[_Batch] = []
    loaders: set[str] = set()
    left_out = others = 0
    try:
        for row in connection.execute(
            "SELECT id, loader, n, dropped, packed FROM steps ORDER BY id DESC LIMIT ?", (BLOCKS,)
        ):
            number, loader, count, dropped, packed = row
            numbers = (number, count, dropped, packed)
            named = isinstance(loader, str) and len(loader) <= NAME
            counted = all(isinstance(one, int) for one in numbers)
            if not named or not counted or not (0 <= count <= STEPS_BLOCK and 0 <= dropped <= INTEGER):
                left_out += 1
            elif loader not in loaders and len(loaders) >= LOADERS:
                others += 1
            else:
                loaders.add(loader)
                found.append(_Batch(number, loader, count, dropped, packed))
    except sqlite3.DatabaseError as error:  # what was read before it counts
        damage.append(f"the list of steps: {error}")
    if left_out:
        damage.append(f"{left_out} batches of steps whose counts are impossible")
    if others:
        damage.append(f"the steps of all but the newest {LOADERS} loaders")
    return found[::-1]


def _load(connection: sqlite3.Connection, batch: _Batch, version: int) -> npt.NDArray[Any]:
    row = connection.execute("SELECT data FROM steps WHERE id = ?", (batch.id,)).fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise Damaged("its bytes are not there")
    return decode.steps(row[0], batch.steps, packed=bool(batch.packed), version=version)
