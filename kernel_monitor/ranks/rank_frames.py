"""The frames that ranks send: a JSON head in a line, then steps and indices as bytes. Any may be lost.

A frame is a message of one part. libzmq ends a process whose connection breaks between two parts of a message that it
sends (an assertion in its `session_base.cpp`), and a rank is somebody's training. What a frame may hold is the table in
`frame_fields`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from .frame_fields import FRAME, MOST_STEPS, parsed, step
from .identity import Identity
from .rank_loaders import Chunk

STEP = struct.Struct("<dIII6fB")
"""One step, as `steps.measured_step.Step` has it: end (s of the rank's monotonic clock), counts, durations, flags."""
INDEX = 4  # bytes of an index
VERSION = 1
MOST_BYTES = 1 << 18  # of a message; a larger one is refused before it is read
_MOST_HEAD = 1 << 17  # bytes of its head: to parse more would hold the GIL for long
_MOST_OPENED = 2000  # lists and objects in it: so many of them would set Python's collector off, which holds it longer
LARGEST = MOST_BYTES + 256  # of a message that the gateway passes on (`wrapped`)
Row = tuple[float, int, int, int, float, float, float, float, float, float, int]


class Machine(NamedTuple):
    """A reading of the machine of the rank that the kernel chose for it (`hosts`)."""

    cores: Sequence[int]  # the numbers of its logical cores
    gpus: Sequence[str]  # the products' names of its GPUs, by NVML's index
    uuids: Sequence[str]  # theirs, in the same order
    values: Mapping[str, float]  # as `NodeSampler.read` and `NodeGpus.read` give them


class Frame(NamedTuple):
    """The report of a rank, sent twice a second."""

    identity: Identity
    sent: float  # s of the rank's monotonic clock
    cpu: float  # % of a core that its process used since the frame before; NaN: not known
    images: float  # samples per second since the frame before; NaN: it has no loader
    dropped: int  # frames that it could not send, in all
    left_out: int  # steps that no frame had, in all
    offset: float | None  # s from its monotonic clock to the kernel's, as far as it knows
    bound: float | None  # s: the offset is at most so wrong
    bye: str | None  # the last frame: why
    steps: list[Row]
    device: str = ""  # the UUID of the rank's GPU; empty: none, or not known
    machine: Machine | None = None  # about once a second, of the rank that reads its machine
    loaders: Sequence[dict[str, Any]] = ()  # the switchable ones' states (`frame_fields.LOADER`)
    chunks: Sequence[Chunk] = ()  # of what they delivered
    indices: bytes = b""  # of all chunks, one after the other, uint32
    handled: Mapping[int, str | None] = MappingProxyType({})  # commands by their numbers, and why one was refused

    def parts(self) -> Iterator[tuple[Chunk, bytes]]:
        """The chunks with their indices."""
        start = 0
        for chunk in self.chunks:
            yield chunk, self.indices[start : start + INDEX * chunk.samples]
            start += INDEX * chunk.samples


def packed(frame: Frame) -> bytes:
    """A frame as a message."""
    head: dict[str, Any] = {**frame._asdict(), "identity": frame.identity._asdict(), "version": VERSION}
    steps = head["steps"] = min(len(frame.steps), MOST_STEPS)
    head["handled"] = dict(frame.handled)
    del head["indices"]
    head["machine"] = None if frame.machine is None else frame.machine._asdict()
    head = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in head.items()}
    rows = b"".join(STEP.pack(*row) for row in frame.steps[len(frame.steps) - steps :])
    return b"\n".join([json.dumps(head).encode(), rows + frame.indices])


def unpacked(message: bytes) -> Frame:
    """The inverse. A ValueError, with the field and what it is not, for anything else."""
    line, end, rest = message.partition(b"\n")
    if not end or len(line) > _MOST_HEAD or len(message) > MOST_BYTES:
        raise ValueError("no frame of a rank")
    if line.count(b"[") + line.count(b"{") > _MOST_OPENED:
        raise ValueError("a frame with too many lists and objects")
    found = parsed(line)
    if type(found) is not dict or type(found.get("version")) is not int or found["version"] != VERSION:
        raise ValueError("a frame of another version")
    head: dict[str, Any] = FRAME(found)
    steps = STEP.size * head["steps"]
    chunks = head["chunks"] = [Chunk(*chunk) for chunk in head["chunks"]]
    if len(rest) != steps + INDEX * sum(chunk.samples for chunk in chunks):
        raise ValueError("no frame of a rank: its steps or indices are not as many as it says")
    head["steps"] = [cast("Row", step(row)) for row in STEP.iter_unpack(rest[:steps])]
    head["identity"] = Identity(**head["identity"])
    head["machine"] = _machine(head["machine"])
    head["device"] = head["device"] or ""
    head |= {name: math.nan for name in ("cpu", "images") if head[name] is None}
    return Frame(**head, indices=rest[steps:])


def _machine(found: dict[str, Any] | None) -> Machine | None:
    if found is not None and len(found["gpus"]) != len(found["uuids"]):
        raise ValueError("machine: not as many GPUs as names of them")
    return None if found is None else Machine(**found)


def wrapped(who: bytes, message: bytes) -> bytes:
    """A message with the name of its rank's connection, as it goes between gateway and kernel: in one part, too."""
    return bytes([len(who)]) + who + message


def unwrapped(message: bytes) -> tuple[bytes, bytes]:
    """The inverse. A ValueError for anything else."""
    if not message or len(message) <= message[0]:
        raise ValueError("no message of the gateway")
    return message[1 : 1 + message[0]], message[1 + message[0] :]
