"""The newest steps of all loaders, in bounded memory, for any number of readers."""

from __future__ import annotations

import math
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .steps import STEP, StepTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kernel_monitor.steps.records import Step

MOST = 200_000
"""Steps that are kept: 10 MB, and a quarter of an hour at 200 steps a second."""
FIRST = 1024
"""Steps that there is room for at first; the room doubles as they come."""


class StepLog:
    """A ring of steps; every method is thread-safe.

    Args:
        most: steps that are kept, at least 1; the oldest go.
    """

    def __init__(self, most: int = MOST) -> None:
        self._lock = Lock()
        self._most = most
        self._rows: npt.NDArray[Any] = np.empty(min(FIRST, most), dtype=STEP)
        self._added = 0  # ever; step n, from 0, stands at n modulo the room
        self._left_out = 0
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return min(self._added, len(self._rows))

    @property
    def nbytes(self) -> int:
        """Bytes that the steps have room in."""
        return int(self._rows.nbytes)

    def add(self, loader: str, rows: Sequence[Step], dropped: int = 0) -> None:
        """Keep steps of a loader (its id).

        Args:
            rows: `end` in session s. One whose end is no moment of the session (not finite, negative) is left out and
                counted.
            dropped: steps between these that were left out before.
        """
        placed = [row for row in rows if math.isfinite(row.end) and row.end >= 0]
        with self._lock:
            number = self._numbers.setdefault(loader, len(self._numbers))
            self._left_out += dropped + len(rows) - len(placed)
            fresh = np.array([(number, *row) for row in placed[-self._most :]], dtype=STEP)
            self._added += len(placed) - len(fresh)
            self._make_room(len(fresh))
            places = (self._added + np.arange(len(fresh))) % len(self._rows)
            self._rows[places] = fresh
            self._added += len(fresh)

    def table(self, start: float | None = None) -> StepTable:
        """A copy of the steps that are kept, by their ends; only those that ended after `start` (session s)."""
        with self._lock:
            at = self._added % len(self._rows)
            full = self._added >= len(self._rows)
            parts = [self._rows[at:], self._rows[:at]] if full else [self._rows[:at]]
            if start is not None:
                parts = [part[part["end"] > start] for part in parts]
            found = np.concatenate(parts)
            loaders = tuple(self._numbers)
            dropped = self._left_out + max(0, self._added - len(self._rows))
        if (np.diff(found["end"]) < 0).any():  # of several loaders, each has brought its own
            found = found[np.argsort(found["end"], kind="stable")]
        return StepTable(loaders=loaders, rows=found, dropped=dropped)

    def _make_room(self, count: int) -> None:
        """Have room for `count` more, or for as many as there may be; the lock is held."""
        wanted = len(self._rows)
        while wanted < min(self._most, self._added + count):
            wanted = min(self._most, 2 * wanted)
        if wanted > len(self._rows):
            # It has not been filled once yet, or it would have its full size.
            kept = min(self._added, len(self._rows))
            grown = np.empty(wanted, dtype=STEP)
            grown[:kept] = self._rows[:kept]
            self._rows = grown
