"""Encodes messages to pages; `kernel_monitor.protocol` has their types, `tests/wire/golden` an example of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MonitorError
from ..protocol.message_types import ErrorReply, HistoryReply
from ..protocol.states import ChartState, Event
from ..store import Rows
from ..text import line, shown, shown_in

MAX_ERROR = 4000  # characters of an error's message


def encode_values(values: npt.NDArray[np.float32]) -> bytes:
    """One row of the table, float32 little-endian, shape ``(series,)``; missing is NaN."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def history(rows: Rows, events: list[Event], charts: list[ChartState]) -> tuple[HistoryReply, list[bytes]]:
    """The reply with many rows; buffers seq, time (float64[n]) and values (float32[n·m], row-major)."""
    content: HistoryReply = {
        "status": "ok",
        "schema": rows.schema.to_json(),
        "rows": len(rows.seq),
        "events": events,
        "charts": charts,
    }
    buffers = [rows.seq.astype("<f8").tobytes(), rows.time.astype("<f8").tobytes(), encode_values(rows.values)]
    return content, buffers


def error(exc: BaseException) -> ErrorReply:
    """The reply to a failed request: the exception's class name and message, always encodable."""
    name = line(type(exc).__name__)
    try:
        message = str(exc)
    except BaseException as worse:  # noqa: BLE001 - a user's exception whose __str__ fails must still be reported
        message = f"{name}, which has no words of its own: {type(worse).__name__} in its __str__"
    return {"status": "error", "error": name, "message": shown(message)[:MAX_ERROR] or name}


def sendable(content: Mapping[str, object]) -> Mapping[str, object]:
    """The content of a message with unencodable text escaped; MonitorError if a value is not JSON.

    Jupyter drops a message that it cannot encode, or sends bytes that are not UTF-8.
    """
    try:
        json.dumps(content, ensure_ascii=False, default=_number).encode()
    except UnicodeEncodeError:
        return shown_in(dict(content))
    except (TypeError, ValueError, RecursionError) as cause:
        raise MonitorError(f"The answer cannot be sent: {cause}.") from cause
    return content


def _number(value: Any) -> int | float:
    """Convert NumPy numbers, as Jupyter does."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
