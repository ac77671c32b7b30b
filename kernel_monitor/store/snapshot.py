"""A copy of everything that a report needs, and its form as bytes.

The form is NumPy's npz with no pickle in it: three arrays, and one array of bytes that holds the rest as JSON, so
that no name or message, whatever characters it holds, can be anything but text.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.errors import SessionError

from .schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Rows:
    """A run of rows, oldest first.

    Attributes:
        schema: the meaning of the columns.
        seq: int64[n], the rows' numbers, ascending; a jump means that older rows had been overwritten.
        time: float64[n], seconds since the session began.
        values: float32[n, m] with `m == len(schema.series)`; NaN is missing.
    """

    schema: Schema
    seq: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]
    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The store at one moment, with the loaders' states and facts about the session.

    Attributes:
        schema: the meaning of the columns.
        seq: int64[n], the rows' numbers, ascending.
        time: float64[n], seconds since the session began.
        values: float32[n, m] with `m == len(schema.series)`; NaN is missing.
        events: as `Store.events` gives them, oldest first.
        loaders: a `LoaderState` of each loader (see `docs/architecture.md`).
        facts: whatever the report says about the session; JSON-able.
    """

    schema: Schema
    seq: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]
    values: npt.NDArray[np.float32]
    events: list[dict[str, Any]]
    loaders: list[dict[str, Any]]
    facts: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """The snapshot as an npz archive.

        Raises:
            TypeError: an event, a loader's state or a fact is not JSON-able.
        """
        text = json.dumps(
            {
                "format": FORMAT,
                "schema": self.schema.to_json(),
                "events": self.events,
                "loaders": self.loaders,
                "facts": dict(self.facts),
            }
        )
        buffer = io.BytesIO()
        np.savez(
            buffer,
            seq=self.seq,
            time=self.time,
            values=self.values,
            # json escapes everything outside ASCII, lone surrogates of odd file names included.
            json=np.frombuffer(text.encode("ascii"), dtype=np.uint8),
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """The inverse of `to_bytes`.

        Raises:
            SessionError: `data` is not a whole snapshot of a format that this version reads.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                seq, time, values = archive["seq"], archive["time"], archive["values"]
                rest = json.loads(archive["json"].tobytes())
            if rest["format"] != FORMAT:
                raise SessionError(f"the snapshot has format {rest['format']}; this version reads format {FORMAT}")
            schema = Schema.from_json(rest["schema"])
            events, loaders, facts = rest["events"], rest["loaders"], rest["facts"]
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise SessionError(f"this is not a readable snapshot ({type(error).__name__}: {error})") from error
        if values.shape != (len(seq), len(schema.series)) or time.shape != seq.shape:
            raise SessionError(
                f"the snapshot's arrays do not fit its schema: {len(seq)} rows, times {time.shape}, "
                f"values {values.shape}, {len(schema.series)} series"
            )
        return cls(
            schema=schema,
            seq=seq.astype(np.int64, copy=False),
            time=time.astype(np.float64, copy=False),
            values=values.astype(np.float32, copy=False),
            events=events,
            loaders=loaders,
            facts=facts,
        )
