"""The steps of a session's file as one table."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernel_monitor.store import STEP, StepTable

from . import decode
from .decode import Damaged
from .file_limits import BLOCKS, EPOCHS, INTEGER, LOADERS, NAME, STEPS, STEPS_BLOCK
from .session_facts import listed

MOST = 500_000  # steps that are read for a report; of more, evenly chosen ones


def read(connection: sqlite3.Connection, damage: list[str], most: int | None = None) -> StepTable:
    """All steps by their ends; what cannot be read is left out and described in `damage`.

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
            rows = _load(connection, batch)
        except (Damaged, sqlite3.DatabaseError) as error:
            damage.append(f"{batch.steps} steps of {batch.loader} (batch {batch.id}): {error}")
            continue
        rows["loader"] = loaders.setdefault(batch.loader, len(loaders))
        found.append(rows)
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
        epochs, which = np.unique(whole["loader"].astype(np.int64) << 32 | whole["epoch"], return_inverse=True)
        if len(epochs) > EPOCHS:
            last = np.zeros(len(epochs))
            last[which] = whole["end"]  # the steps are in the order of their ends: the last assignment stays
            kept = np.isin(which, np.argsort(last)[-EPOCHS:])
            damage.append(f"the steps of all but the newest {EPOCHS:,} epochs")
            dropped += int((~kept).sum())
            whole = whole[kept]
    return StepTable(loaders=tuple(loaders), rows=whole, dropped=dropped)


def count(connection: sqlite3.Connection) -> int:
    return sum(batch.steps for batch in _batches(connection, []))


class _Batch(NamedTuple):
    """A row of the file's table `steps`: `dropped` steps before these were not kept; `packed`: see `decode.steps`."""

    id: int
    loader: str
    steps: int
    dropped: int
    packed: int


def _batches(connection: sqlite3.Connection, damage: list[str]) -> list[_Batch]:
    """The batches of the newest loaders, in their order; malformed ones are left out."""
    found: list[_Batch] = []
    loaders: set[str] = set()
    left_out = others = 0
    for row in listed(
        connection, "steps", "id, loader, n, dropped, packed", f"ORDER BY id DESC LIMIT {BLOCKS}", damage
    ):
        batch = _Batch(*row)
        named = isinstance(batch.loader, str) and len(batch.loader) <= NAME
        counted = all(isinstance(value, int) for value in (batch.id, batch.steps, batch.dropped, batch.packed))
        if not named or not counted or not (0 <= batch.steps <= STEPS_BLOCK and 0 <= batch.dropped <= INTEGER):
            left_out += 1
        elif batch.loader not in loaders and len(loaders) >= LOADERS:
            others += 1
        else:
            loaders.add(batch.loader)
            found.append(batch)
    if left_out:
        damage.append(f"{left_out} batches of steps whose counts are impossible")
    if others:
        damage.append(f"the steps of all but the newest {LOADERS} loaders")
    return found[::-1]


def _load(connection: sqlite3.Connection, batch: _Batch) -> npt.NDArray[Any]:
    row = connection.execute("SELECT data FROM steps WHERE id = ?", (batch.id,)).fetchone()
    if row is None or not isinstance(row[0], bytes):
        raise Damaged("its bytes are not there")
    return decode.steps(row[0], batch.steps, packed=bool(batch.packed))
