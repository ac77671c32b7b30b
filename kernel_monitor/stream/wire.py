"""The messages between kernel and page: names, version and encoding.

`docs/architecture.md` describes them, `widgets/src/wire.ts` mirrors this module, and `tests/wire/golden` holds one
example of each message, asserted from both languages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..store import Rows

PROTOCOL = 1
"""Grows when an older page or kernel could misread a message."""

REQUEST = "kernel_monitor_request"
REPLY = "kernel_monitor_reply"
FRAME = "kernel_monitor_frame"
NOTICE = "kernel_monitor_notice"
GLANCE = "kernel_monitor_glance"


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
    """The reply for a failed request: the exception's class name and its sentence."""
    return {"status": "error", "error": type(exc).__name__, "message": str(exc) or type(exc).__name__}
