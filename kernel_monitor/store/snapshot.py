"""Runs of rows, and snapshots: immutable copies of the store at one moment, with their form as bytes.

The form is NumPy's npz with no pickle in it: rows and steps as arrays, and one array of bytes that holds the rest as
JSON, so that any characters in a name or message remain text.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.errors import SessionError

from .schema import Schema

if TYPE_CHECKING:
    from kernel_monitor.steps.measured_step import Step

# ---- The steps of all loaders: a table of them, and the log that keeps the newest in bounded memory.

STEP = np.dtype(
    [
        ("loader", "<i4"),
        ("end", "<f8"),
        ("epoch", "<u4"),
        ("batch", "<u4"),
        ("images", "<u4"),
        ("wait", "<f4"),
        ("step", "<f4"),
        ("copy", "<f4"),
        ("forward", "<f4"),
        ("backward", "<f4"),
        ("optimizer", "<f4"),
        ("flags", "<u1"),
    ]
)
"""`steps.measured_step.Step` with `loader` before it: the index of the loader's id in `StepTable.loaders`."""
MOST = 200_000  # steps that a log keeps: 10 MB, and a quarter of an hour at 200 steps a second


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps in the order of their ends."""

    loaders: tuple[str, ...] = ()  # ids of the loaders, in the order of the numbers in `rows["loader"]`
    # `STEP`[n]; `end` in session s, durations in s, NaN where something was not measured.
    rows: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=STEP))
    dropped: int = 0  # steps that were not kept

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, loader: str, start: float = -np.inf, end: float = np.inf) -> npt.NDArray[Any]:
        """Return the steps of one loader that ended in `(start, end]`."""
        if loader not in self.loaders:
            return self.rows[:0]
        low, high = np.searchsorted(self.rows["end"], [start, end], side="right")
        part = self.rows[low:high]
        found: npt.NDArray[Any] = part[part["loader"] == self.loaders.index(loader)]
        return found


class StepLog:
    """A ring of the newest `most` steps of all loaders; every method is thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = Lock()
        self._rows: npt.NDArray[Any] = np.empty(most, dtype=STEP)  # takes memory as it is filled
        self._added = 0  # ever; step n, from 0, stands at n modulo `most`
        self._left_out = 0
        self._newest = -1.0
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return min(self._added, len(self._rows))

    @property
    def newest(self) -> float:
        """The end of the newest step, session s; -1 before the first."""
        return self._newest

    def add(self, loader: str, rows: Sequence[Step], dropped: int = 0) -> None:
        """Keep steps of a loader (its id), with ends in session s; `dropped` ones between these were left out before.

        Steps whose end is not finite or negative are left out and counted.
        """
        placed = [row for row in rows if math.isfinite(row.end) and row.end >= 0]
        with self._lock:
            number = self._numbers.setdefault(loader, len(self._numbers))
            self._left_out += dropped + len(rows) - len(placed)
            fresh = np.array([(number, *row) for row in placed[-len(self._rows) :]], dtype=STEP)
            self._added += len(placed)
            self._newest = max([self._newest, *(row.end for row in placed[-1:])])
            self._rows[(self._added - len(fresh) + np.arange(len(fresh))) % len(self._rows)] = fresh

    def table(self, start: float | None = None) -> StepTable:
        """Return a copy of the steps that are kept, by their ends; only those that ended after `start` (session s)."""
        with self._lock:
            at = self._added % len(self._rows)
            full = self._added >= len(self._rows)
            parts = [self._rows[at:], self._rows[:at]] if full else [self._rows[:at]]
            if start is not None:
                parts = [part[part["end"] > start] for part in parts]
            found = np.concatenate(parts)
            loaders = tuple(self._numbers)
            dropped = self._left_out + max(0, self._added - len(self._rows))
        if (np.diff(found["end"]) < 0).any():  # several loaders added their steps in turn
            found = found[np.argsort(found["end"], kind="stable")]
        return StepTable(loaders=loaders, rows=found, dropped=dropped)


# ---- Runs of rows, and snapshots.

FORMAT = 2


@dataclass(frozen=True, eq=False)
class Rows:
    """A run of rows, oldest first."""

    schema: Schema  # the meaning of the columns
    seq: npt.NDArray[np.int64]  # int64[n], the rows' numbers, ascending; a jump: older rows had been overwritten
    time: npt.NDArray[np.float64]  # float64[n], seconds since the session began
    values: npt.NDArray[np.float32]  # float32[n, m] with `m == len(schema.series)`; NaN is missing

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, eq=False)
class Snapshot(Rows):
    """The store at one moment: all its rows, with the loaders' states and facts about the session."""

    events: list[dict[str, Any]]  # as `Store.events` gives them, oldest first
    loaders: list[dict[str, Any]]  # a `LoaderState` of each loader (see `docs/messages.md`)
    facts: Mapping[str, Any]  # facts of the session for the report; JSON-able
    steps: StepTable = field(default_factory=StepTable)  # the loaders' steps, as far as they are kept

    def to_bytes(self) -> bytes:
        """Return the snapshot as an npz archive; events, loaders' states and facts must be JSON-able."""
        text = json.dumps(
            {
                "format": FORMAT,
                "schema": self.schema.to_json(),
                "events": self.events,
                "loaders": self.loaders,
                "facts": dict(self.facts),
                "steps": {"loaders": list(self.steps.loaders), "dropped": self.steps.dropped},
            }
        )
        buffer = io.BytesIO()
        np.savez(
            buffer,
            seq=self.seq,
            time=self.time,
            values=self.values,
            steps=self.steps.rows,
            # json escapes everything outside ASCII, lone surrogates of odd file names included.
            json=np.frombuffer(text.encode("ascii"), dtype=np.uint8),
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Return the snapshot that `to_bytes` packed; raise a SessionError if it is damaged or of an unknown format."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                seq, time, values, rows = (archive[name] for name in ("seq", "time", "values", "steps"))
                rest = json.loads(archive["json"].tobytes())
            if rest["format"] != FORMAT:
                raise SessionError(f"the snapshot has format {rest['format']}; this version reads format {FORMAT}")
            schema = Schema.from_json(rest["schema"])
            events, loaders, facts = rest["events"], rest["loaders"], rest["facts"]
            steps = StepTable(tuple(rest["steps"]["loaders"]), rows, int(rest["steps"]["dropped"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise SessionError(f"this is not a readable snapshot ({type(error).__name__}: {error})") from error
        if values.shape != (len(seq), len(schema.series)) or time.shape != seq.shape:
            raise SessionError(
                f"the snapshot's arrays do not fit its schema: {len(seq)} rows, times {time.shape}, "
                f"values {values.shape}, {len(schema.series)} series"
            )
        if rows.dtype != STEP or rows.ndim != 1 or not np.isin(rows["loader"], range(len(steps.loaders))).all():
            raise SessionError(f"the snapshot's steps are not such: {rows.dtype}, {rows.shape}")
        return cls(
            schema=schema,
            seq=seq.astype(np.int64, copy=False),
            time=time.astype(np.float64, copy=False),
            values=values.astype(np.float32, copy=False),
            events=events,
            loaders=loaders,
            facts=facts,
            steps=steps,
        )
