"""The messages between kernel and page: names, version and encoding.

`docs/architecture.md` describes them, `widgets/src/wire.ts` mirrors this module, and `tests/wire/golden` holds one
example of each message, asserted from both languages.
"""

from __future__ import annotations

import json
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MonitorError
from ..store import Rows
from ..text import line, shown, shown_in

PROTOCOL = 1
"""Grows when an older page or kernel could misread a message."""

TARGET = "kernel_monitor"
"""Target of the comm in the kernel's list that says that it answers requests."""
REQUEST = "kernel_monitor_request"
REPLY = "kernel_monitor_reply"
FRAME = "kernel_monitor_frame"
NOTICE = "kernel_monitor_notice"
GLANCE = "kernel_monitor_glance"


MOST_LETTERS = 4000
"""Of an error's message."""


def encode_values(values: npt.NDArray[np.float32]) -> bytes:
    """One row of the table, float32 little-endian, shape ``(series,)``; missing is NaN."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def encode_history(rows: Rows) -> tuple[dict[str, Any], list[bytes]]:
    """Many rows: content `{"schema", "rows"}`; buffers seq, time (float64[n]) and values (float32[n·m], by rows)."""
    content = {"schema": rows.schema.to_json(), "rows": len(rows.seq)}
    buffers = [
        rows.seq.astype("<f8").tobytes(),
        rows.time.astype("<f8").tobytes(),
        encode_values(rows.values),
    ]
    return content, buffers


def ok(**content: Any) -> dict[str, Any]:
    return {"status": "ok", **content}


def error(exc: BaseException) -> dict[str, Any]:
    """The reply for a failed request: the exception's class name and its sentence; can always be sent."""
    name = line(type(exc).__name__)
    try:
        message = str(exc)
    except BaseException as worse:  # noqa: BLE001 - an exception of somebody else's; it must be told all the same
        message = f"{name}, which has no words of its own: {type(worse).__name__} in its __str__"
    return {"status": "error", "error": name, "message": shown(message)[:MOST_LETTERS] or name}


def sendable(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a message as it can be encoded: text that cannot be is escaped.

    Jupyter leaves a message that it cannot encode unsent, or sends bytes that are no UTF-8.

    Raises:
        MonitorError: there is something else in it than JSON has.
    """
    try:
        json.dumps(content, ensure_ascii=False, default=_number).encode()
    except UnicodeEncodeError:
        escaped: dict[str, Any] = shown_in(content)
        return escaped
    except (TypeError, ValueError, RecursionError) as cause:
        raise MonitorError(f"The answer cannot be sent: {cause}.") from cause
    return content


def _number(value: Any) -> int | float:
    """NumPy's numbers, which Jupyter encodes as well."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
