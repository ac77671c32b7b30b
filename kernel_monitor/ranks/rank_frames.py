"""The frames that ranks send: a JSON head in a line, then steps and indices as bytes. Any may be lost.

A frame is a message of one part. libzmq ends a process whose connection breaks between two parts of a message that it
sends (an assertion in its `session_base.cpp`), and a rank is somebody's training.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .identity import Identity
from .rank_loaders import SENT, Chunk

STEP = struct.Struct("<dIII6fB")
"""One step, as `steps.measured_step.Step` has it: end (s of the rank's monotonic clock), counts, durations, flags."""
INDEX = 4  # bytes of an index
VERSION = 1
MOST_STEPS = 1000  # in a frame; of more, the newest are sent
MOST_BYTES = 1 << 18  # of a message; a larger one is refused before it is read
Row = tuple[float, int, int, int, float, float, float, float, float, float, int]


MOST_CORES = 2048  # of a machine, and
MOST_GPUS = 64  # GPUs, that a frame may have


class Machine(NamedTuple):
    """A reading of the machine of the rank that the kernel chose for it (`hosts`)."""

    cores: Sequence[int]  # the numbers of its logical cores
    gpus: Sequence[str]  # the products' names of its GPUs, by NVML's index
    uuids: Sequence[str]  # theirs, in the same order
    values: Mapping[str, float]  # as `NodeSampler.read` and `NodeGpus.read` give them


class Frame(NamedTuple):
    """What a rank reports, twice a second."""

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
    loaders: Sequence[dict[str, Any]] = ()  # the switchable ones' states (`rank_loaders.SENT`)
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
    """The inverse. A ValueError for anything else."""
    line, end, rest = message.partition(b"\n")
    if not end:
        raise ValueError("no frame of a rank")
    try:
        head: dict[str, Any] = json.loads(line)
        if head["version"] != VERSION:
            raise ValueError("a frame of another version")
        steps = STEP.size * int(head["steps"])
        rows, indices = rest[:steps], rest[steps:]
        chunks = [Chunk(*chunk) for chunk in head["chunks"]]
        counted = sum(_natural(chunk) for chunk in chunks)
        if len(rows) != steps or steps > MOST_STEPS * STEP.size or len(indices) != INDEX * counted:
            raise ValueError("no frame of a rank")
        return Frame(
            identity=_checked(head["identity"]),
            sent=float(head["sent"]),
            cpu=_number(head["cpu"]),
            images=_number(head["images"]),
            dropped=int(head["dropped"]),
            left_out=int(head["left_out"]),
            offset=_maybe(head["offset"]),
            bound=_maybe(head["bound"]),
            bye=None if head["bye"] is None else str(head["bye"])[:200],
            steps=[row for row in STEP.iter_unpack(rows) if math.isfinite(row[0])],
            loaders=[_state(state) for state in head["loaders"]],
            chunks=chunks,
            indices=indices,
            handled={int(number): None if why is None else str(why) for number, why in head["handled"].items()},
            device=str(head.get("device") or "")[:64],
            machine=_machine(head.get("machine")),
        )
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no frame of a rank: {error!r:.100}") from None


def _natural(chunk: Chunk) -> int:
    """How many indices a piece has; a ValueError if one of its numbers is none."""
    numbers: list[Any] = [chunk.epoch, chunk.first, chunk.start, chunk.samples, chunk.planned, chunk.length, chunk.end]
    numbers += [chunk.skipped, chunk.lost, chunk.doubled]
    if not all(isinstance(number, int) and 0 <= number < 1 << 40 for number in numbers):
        raise ValueError("a piece of an epoch that is none")
    return chunk.samples


def _state(found: dict[str, Any]) -> dict[str, Any]:
    """A loader's state; a ValueError or TypeError if it cannot be one."""
    state: dict[str, Any] = {name: found[name] for name in ("id", *SENT)}
    texts = [state["id"], state["name"], state["backend"], state["status"]]
    numbers = [state[name] for name in ("epoch", "batch", "samples", "lost", "doubled", "skipped", "replaced")]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in numbers):
        raise ValueError("a loader's state that is none")
    for engine in state["backends"]:
        if not isinstance(engine["name"], str) or not isinstance(engine["available"], bool):
            raise ValueError("a loader's engine that is none")
    return state


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _maybe(value: Any) -> float | None:
    return None if value is None else float(value)


def _machine(found: dict[str, Any] | None) -> Machine | None:
    if found is None:
        return None
    cores = [int(core) for core in found["cores"]]
    gpus, uuids = ([str(text)[:100] for text in found[key]] for key in ("gpus", "uuids"))
    if len(cores) > MOST_CORES or not all(0 <= core < 1 << 16 for core in cores):
        raise ValueError("cores of a machine that are none")
    if len(gpus) > MOST_GPUS or len(gpus) != len(uuids):
        raise ValueError("GPUs of a machine that are none")
    return Machine(cores, gpus, uuids, {str(name): float(value) for name, value in found["values"].items()})


def _checked(found: dict[str, Any]) -> Identity:
    identity = Identity(**{**found, "start": float(found["start"])})
    numbers: list[Any] = [identity.pid, identity.parent, identity.rank or 0, identity.world or 0]
    texts: list[Any] = [identity.host, identity.name, identity.job]
    if not all(isinstance(value, int) and 0 <= value < 1 << 31 for value in numbers):
        raise ValueError("numbers of a rank that are none")
    if not all(isinstance(text, str) and len(text) <= 300 for text in texts):
        raise ValueError("names of a rank that are none")
    return identity
