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
from typing import Any, NamedTuple, NoReturn, cast

from ..field_checks import fields, flag, many, matching, maybe, number, row, table, text, whole
from ..rank import Row

STEP = struct.Struct("<dIII6fB")
"""One step, as `steps.measured_step.Step` has it: end (s of the rank's monotonic clock), counts, durations, flags."""
INDEX = 4  # bytes of an index
VERSION = 1
MOST_BYTES = 1 << 18  # of a message; a larger one is refused before it is read
_MOST_HEAD = 1 << 17  # bytes of its head: to parse more would hold the GIL for long
_MOST_OPENED = 2000  # lists and objects in it: so many of them would set Python's collector off, which holds it longer
LARGEST = MOST_BYTES + 256  # of a message that the gateway passes on (`wrapped`)


class Identity(NamedTuple):
    """A process as its job knows it; None: not known."""

    host: str  # `host_key`: tells machines, and containers with process numbers of their own, apart
    name: str  # the machine's, for people
    pid: int
    start: float  # by `os_process.start_of`
    parent: int  # the number of the process that started it
    rank: int | None
    world: int | None
    job: str  # the same for all ranks of a job: where its ranks meet, or the process that started them


class Chunk(NamedTuple):
    """Some of an epoch's indices, in the order of the rank's plan."""

    loader: str  # its id in the rank's process
    epoch: int
    first: int  # the place in the plan where the iteration began
    start: int  # the place of the first of these indices
    samples: int
    planned: int  # samples that this rank's sampler has in the epoch
    length: int  # samples of the data set
    shared: bool  # whether the sampler takes one rank's share
    finished: bool  # the plan has ended, and all of it was answered
    end: int  # the place after the last sample that was answered
    skipped: int  # of the samples answered, those that could not be read, and those that synthetic ones replaced
    lost: int  # lost, doubled: by the rank's own count of its plan
    doubled: int


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
    loaders: Sequence[dict[str, Any]] = ()  # the switchable ones' states (`LOADER`)
    chunks: Sequence[Chunk] = ()  # of what they delivered
    indices: bytes = b""  # of all chunks, one after the other, uint32
    handled: Mapping[int, str | None] = MappingProxyType({})  # commands by their numbers, and why one was refused

    def parts(self) -> Iterator[tuple[Chunk, bytes]]:
        """Return the chunks with their indices."""
        start = 0
        for chunk in self.chunks:
            yield chunk, self.indices[start : start + INDEX * chunk.samples]
            start += INDEX * chunk.samples


# ---- What each field of a frame may be: one table of types, ranges and lengths.
#
# A rank of another machine can send anything, and what it sends reaches the charts, the page and the recording of a
# process that trains. So a frame is taken as a whole or refused as a whole, and what is taken has exactly these types:
# JSON's `true` is no number, NaN and infinity are none, and nothing is nested deeper than the table. Fields that the
# table does not name are dropped: another version's ranks may have more.

MOST_STEPS = 1000  # in a frame; of more, the newest are sent
MOST_CORES = 2048  # of a machine, and
MOST_GPUS = 64  # GPUs, that a frame may have
MOST_LOADERS = 8  # that a frame reports
EPOCHS = 4  # newest epochs of a loader whose indices are sent
HANDLED = 32  # commands that a rank remembers
SENTENCE = 500  # letters of a sentence
NAME = 200  # letters of a name or an id
KEY = 300  # letters of what tells hosts and jobs apart
MOST_RANKS = 10**7  # that a job may say it has
SECONDS = 1e12  # of a clock
LONGEST_S = 1e7  # of a step
_LEAST_S = -0.1  # of a part of a step: times of the GPU are rounded


_IDENTITY = fields({
    "host": text(KEY),
    "name": text(NAME),
    "pid": whole(0, (1 << 31) - 1),
    "start": number(0, SECONDS),
    "parent": whole(0, (1 << 31) - 1),
    "rank": maybe(whole(0, MOST_RANKS)),
    "world": maybe(whole(0, MOST_RANKS)),
    "job": text(KEY),
})  # fmt: skip
_ENGINE = fields({
    "name": text(NAME),
    "available": flag,
    "reason": maybe(text(SENTENCE)),
    "confirm": maybe(text(SENTENCE)),
    "note": maybe(text(SENTENCE)),
})  # fmt: skip
KNOB = maybe(whole(0, 1 << 20))
LOADER_FIELDS = {
    "name": text(NAME),
    "backend": text(NAME),
    "wanted": maybe(text(NAME)),
    "status": text(SENTENCE),
    "backends": many(_ENGINE, 16),
    "knobs": fields({"workers": KNOB, "prefetch": KNOB, "threads": KNOB}),
    "epoch": whole(),
    "batch": whole(),
    "batches": maybe(whole()),
    "samples": whole(),
    "planned": maybe(whole()),
    "lost": whole(),
    "doubled": whole(),
    "skipped": whole(),
    "replaced": whole(),
    "decoded": table(text(NAME), whole(), 16),
}
"""What a frame has of a `LoaderState`, beside the loader's id."""
LOADER = fields({"id": text(NAME), **LOADER_FIELDS})
_CHUNK = row(text(NAME), *[whole()] * 6, flag, flag, *[whole()] * 4)  # `Chunk`
MACHINE = fields({
    "cores": many(whole(0, (1 << 16) - 1), MOST_CORES),
    "gpus": many(text(NAME), MOST_GPUS),
    "uuids": many(text(NAME), MOST_GPUS),
    "values": table(
        matching(r"cpu/\d{1,5}/busy|network/(received|sent)|memory|gpu/\d{1,2}/(utilisation|clock|memory_used)", 40),
        number(0, 1e18),
        MOST_CORES + 3 * MOST_GPUS + 3,
    ),
})  # fmt: skip
FRAME = fields({
    "identity": _IDENTITY,
    "sent": number(0, SECONDS),
    "cpu": maybe(number(0, 1e9)),
    "images": maybe(number(0, 1e12)),
    "dropped": whole(),
    "left_out": whole(),
    "offset": maybe(number(-SECONDS, SECONDS)),
    "bound": maybe(number(0, SECONDS)),
    "bye": maybe(text(SENTENCE)),
    "steps": whole(0, MOST_STEPS),
    "device": maybe(text(NAME)),
    "machine": maybe(MACHINE),
    "loaders": many(LOADER, MOST_LOADERS),
    "chunks": many(_CHUNK, MOST_LOADERS * EPOCHS),
    "handled": table(matching(r"\d{1,12}", 12, int), maybe(text(SENTENCE)), HANDLED),
}, device=None, machine=None)  # fmt: skip
"""The head of a frame, beside its version."""


def step(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check a step that was unpacked from its bytes: when it ended (s), counts, durations (s; NaN: not measured),
    flags.
    """
    end, *_, _flags = found
    if not 0 <= end <= SECONDS:
        raise ValueError("steps: the end of one is no time")
    for duration in found[4:10]:
        if not (_LEAST_S <= duration <= LONGEST_S or math.isnan(duration)):
            raise ValueError("steps: a duration of one is none")
    return found


def parsed(head: bytes) -> Any:
    """Parse JSON without NaN and infinity. A ValueError for anything else."""
    try:
        return json.loads(head, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


# ---- Frames as messages.


def packed(frame: Frame) -> bytes:
    """Return a frame as a message."""
    head: dict[str, Any] = {**frame._asdict(), "identity": frame.identity._asdict(), "version": VERSION}
    steps = head["steps"] = min(len(frame.steps), MOST_STEPS)
    head["handled"] = dict(frame.handled)
    del head["indices"]
    head["machine"] = None if frame.machine is None else frame.machine._asdict()
    head = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in head.items()}
    rows = b"".join(STEP.pack(*row) for row in frame.steps[len(frame.steps) - steps :])
    return b"\n".join([json.dumps(head).encode(), rows + frame.indices])


def unpacked(message: bytes) -> Frame:
    """Return the frame of a message. A ValueError, with the field and what it is not, for anything else."""
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
    """Join a message and the name of its rank's connection to one part, as it goes between gateway and kernel."""
    return bytes([len(who)]) + who + message


def unwrapped(message: bytes) -> tuple[bytes, bytes]:
    """Return the name and the message of `wrapped`. A ValueError for anything else."""
    if not message or len(message) <= message[0]:
        raise ValueError("no message of the gateway")
    return message[1 : 1 + message[0]], message[1 + message[0] :]
