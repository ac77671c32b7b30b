"""The sampler's messages on its stdout: `<u32 little-endian length><u8 kind><payload>`.

`length` counts the payload alone. Hello and notice are JSON; a frame is `<f8 monotonic><u4 missed><f4 x n>`, one value
for each series of the last hello, NaN where there is none.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

HELLO = 1
FRAME = 2
NOTICE = 3

_HEAD = struct.Struct("<IB")
_STAMP = struct.Struct("<dI")
VALUES_AT = _HEAD.size + _STAMP.size  # where the values begin in a frame's bytes
_LARGEST = 1 << 24  # bytes; a frame of a thousand cores has about 8,000


class WireError(Exception):
    """The bytes are not messages of a sampler."""


class Frame(NamedTuple):
    """One sample."""

    monotonic: float  # `time.monotonic()` when it was taken, in seconds
    missed: int  # deadlines since the frame before it that brought no frame
    values: array[float]  # one float for each series of the last hello


def check_interval(seconds: float) -> float:
    """The interval if the sampler can keep it; a ValueError otherwise."""
    if not 0.01 <= seconds <= 60:
        raise ValueError(f"the interval is {seconds:g} s; it must lie between 0.01 and 60 s")
    return seconds


def encode_json(kind: int, content: Mapping[str, Any]) -> bytes:
    payload = json.dumps(content).encode("ascii")
    return _HEAD.pack(len(payload), kind) + payload


class FrameEncoder:
    """Encodes frames of `width` values."""

    def __init__(self, width: int) -> None:
        self._struct = struct.Struct(f"<IBdI{width}f")
        self._length = self._struct.size - _HEAD.size

    def encode(self, monotonic: float, missed: int, values: Sequence[float]) -> bytes:
        return self._struct.pack(self._length, FRAME, monotonic, missed, *values)


class Decoder:
    """Cuts a stream of bytes, fed in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The messages that `data` completes, as (kind, payload); a WireError for an unknown kind or absurd length."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if kind not in (HELLO, FRAME, NOTICE) or length > _LARGEST:
                raise WireError(f"message of kind {kind} and {length} bytes")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield kind, payload


def decode_json(payload: bytes) -> dict[str, Any]:
    """The content of a hello or a notice; a WireError if it is not a JSON object."""
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WireError(f"not a JSON object: {payload[:80]!r}")
    return content


def decode_frame(payload: bytes) -> Frame:
    """The content of a frame; a WireError if it is cut short."""
    if len(payload) < _STAMP.size or (len(payload) - _STAMP.size) % 4:
        raise WireError(f"a frame of {len(payload)} bytes")
    monotonic, missed = _STAMP.unpack_from(payload)
    values = array("f", payload[_STAMP.size :])
    if sys.byteorder == "big":
        values.byteswap()
    return Frame(monotonic, missed, values)
