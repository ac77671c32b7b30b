"""Runs of rows, and snapshots: immutable copies of the store at one moment, with their form as bytes.

The form is NumPy's npz with no pickle in it: rows and steps as arrays, and one array of bytes that holds the rest as
JSON, so that any characters in a name or message remain text.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.errors import SessionError

from .schema import Schema
from .steps import STEP, StepTable

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
        """The snapshot as an npz archive; events, loaders' states and facts must be JSON-able."""
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
        """The inverse of `to_bytes`; a SessionError for anything but a whole snapshot of a format that is known."""
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
