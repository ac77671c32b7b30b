"""The pipes between the kernel and the sampler, and the messages on them; no side waits for the other."""

from __future__ import annotations

import json
import os
import select
import struct
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

RECORD = "KERNEL_MONITOR_SAMPLER_RECORD"
"""The environment variable with the file to record to: unlike arguments, other users of the machine cannot read it."""

# ---- Both ends of the pipes; no writer waits for its reader.

BACKLOG = 1 << 20
"""Bytes that are kept for a reader that does not read: a reader that was stopped for a day must not fill the memory."""
_FREQUENT = ("values", "node-values", "steps")
"""Messages to the sampler of which the oldest are dropped first when the backlog is full."""
_FULL_S = 0.05  # seconds until the thread tries a full pipe again
JOIN_S = 1.0  # the longest wait of `close` for the thread, which may be blocked in a write (Windows)


class _Line(NamedTuple):
    """A line for the sampler."""

    data: bytes
    frequent: bool = False  # its message is one of `_FREQUENT`
    written: threading.Event | None = None  # set when all lines up to this one are written


class Outbox:
    """The kernel's queue of messages to the sampler, and the thread `kernel-monitor-send` that writes them.

    Only the thread writes: an interrupt in the middle of a write by a cell would leave half a line.
    """

    def __init__(self) -> None:
        self.dropped = 0  # messages that were dropped because the backlog was full
        self._arrived: SimpleQueue[_Line | None] = SimpleQueue()
        self._waiting: deque[_Line] = deque()
        self._size = 0
        self._done = 0  # written bytes of the first line
        self._pipe: int | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-send", daemon=True)
        self._thread.start()

    def put(self, message: dict[str, Any]) -> bool:
        """Queue a message (JSON, or NaN).

        Returns False if the queue is closed, or the message alone is larger than the backlog.
        """
        line = _Line(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n", message.get("do") in _FREQUENT)
        if self._closed or len(line.data) > BACKLOG:
            return False
        self._arrived.put(line)
        return True

    def connect(self, pipe: int | None) -> None:
        """Write to `pipe` from now on, or to no pipe if None; a line that was begun is written again as a whole."""
        if pipe is not None and sys.platform != "win32":  # pipes there are always blocking: the thread waits
            os.set_blocking(pipe, False)
        with self._lock:
            self._pipe = pipe
            self._done = 0
        self._arrived.put(None)  # wakes the thread

    def flush(self, seconds: float) -> bool:
        """Wait until all earlier messages are written, at most `seconds`; return whether they are."""
        written = threading.Event()
        self._arrived.put(_Line(b"", written=written))
        return written.wait(seconds)

    def close(self) -> None:
        """Take no more messages, and let the thread end."""
        self._closed = True
        self._arrived.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        full = False
        while not self._closed:
            try:
                line = self._arrived.get(timeout=_FULL_S if full else None)
                while True:
                    if line is not None:
                        self._keep(line)
                    line = self._arrived.get_nowait()
            except Empty:
                pass
            full = not self._write()

    def _keep(self, line: _Line) -> None:
        with self._lock:
            self._waiting.append(line)
            self._size += len(line.data)
            first = 1 if self._done else 0  # a line that was begun is kept
            while self._size > BACKLOG:
                # Drop the oldest frequent line, else the oldest line.
                at = next((at for at in range(first, len(self._waiting)) if self._waiting[at].frequent), first)
                self._size -= len(self._waiting[at].data)
                del self._waiting[at]
                self.dropped += 1

    def _write(self) -> bool:
        """Write all lines; return False if the pipe is full."""
        with self._lock:
            while self._waiting and self._pipe is not None:
                line = self._waiting[0]
                try:
                    self._done += os.write(self._pipe, line.data[self._done :]) if line.data else 0
                except BlockingIOError:
                    return False
                except OSError:
                    self._pipe, self._done = None, 0  # this sampler has ended; the next sampler gets the line
                    return True
                if self._done == len(line.data):
                    self._waiting.popleft()
                    self._size -= len(line.data)
                    self._done = 0
                    if line.written is not None:
                        line.written.set()
            return True


class Input:
    """A reader of lines from the pipe `fd`; the sampler sleeps by waiting for them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._lines: list[bytes] = []
        self._chunks: SimpleQueue[bytes] | None = None
        if sys.platform == "win32":  # select() accepts no pipes there: a thread reads
            self._chunks = SimpleQueue()
            threading.Thread(target=self._read, args=(self._chunks,), name="stdin", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Sleep until data arrives, at most `timeout` seconds; return False once the pipe has ended."""
        if self._chunks is not None:
            try:
                data = self._chunks.get(timeout=timeout)
            except Empty:
                return True
        else:
            # poll() would round to whole milliseconds.
            if not select.select([self._fd], [], [], timeout)[0]:
                return True
            data = os.read(self._fd, 65536)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._lines += [line for line in lines if line.strip()]
        if len(self._buffer) > BACKLOG:
            self._lines.append(self._buffer)
            self._buffer = b""
        return True

    def lines(self) -> list[bytes]:
        """Return the lines that arrived since the last call, without line feeds."""
        lines, self._lines = self._lines, []
        return lines

    def _read(self, chunks: SimpleQueue[bytes]) -> None:
        while True:
            data = os.read(self._fd, 65536)
            chunks.put(data)
            if not data:
                return


class Output:
    """A writer of whole messages to the pipe `fd`. If the pipe is full, a message is kept or dropped; it never waits.

    A reader that does not read would otherwise block the sampler, which then would not notice the reader's end. (On
    Windows, where pipes always block, writing waits.)
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest: deque[bytes] = deque()
        if sys.platform != "win32":
            os.set_blocking(fd, False)

    def send(self, message: bytes, *, keep: bool = False) -> bool:
        """Send `message` now, or as soon as there is room if `keep` is set; return False if it was dropped.

        Raises:
            OSError: the pipe is broken: no process has its other end open.
        """
        while self._rest:
            head = self._rest[0]
            done = self._write(head)
            if done < len(head):
                self._rest[0] = head[done:]
                break
            self._rest.popleft()
        done = 0 if self._rest else self._write(message)
        if done == len(message):
            return True
        if done == 0 and (not keep or sum(map(len, self._rest)) + len(message) > BACKLOG):
            return False
        self._rest.append(message[done:])  # a message that was begun must be completed, or the reader is out of step
        return True

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0


# ---- The sampler's messages on its stdout: `<u32 little-endian length><u8 kind><payload>`.

HELLO = 1
FRAME = 2
NOTICE = 3

_HEAD = struct.Struct("<IB")
_STAMP = struct.Struct("<dI")
VALUES_AT = _HEAD.size + _STAMP.size  # offset of the values in a frame's bytes
_LARGEST = 1 << 24  # bytes of a payload; a frame of a thousand cores has about 8,000


class WireError(Exception):
    """The bytes are not messages of a sampler."""


class Frame(NamedTuple):
    """A sample of all series."""

    monotonic: float  # `time.monotonic()` when it was taken, in seconds
    missed: int  # deadlines without a frame since the last frame
    values: array[float]  # one float for each series of the last hello


def check_interval(seconds: float) -> float:
    """Return the interval; raise a ValueError if it is not between 0.01 and 60 s."""
    if not 0.01 <= seconds <= 60:
        raise ValueError(f"the interval is {seconds:g} s; it must lie between 0.01 and 60 s")
    return seconds


def encode_json(kind: int, content: Mapping[str, Any]) -> bytes:
    """Return the message of a hello or a notice."""
    payload = json.dumps(content).encode("ascii")
    return _HEAD.pack(len(payload), kind) + payload


class FrameEncoder:
    """An encoder of frames of `width` values."""

    def __init__(self, width: int) -> None:
        self._struct = struct.Struct(f"<IBdI{width}f")
        self._length = self._struct.size - _HEAD.size

    def encode(self, monotonic: float, missed: int, values: Sequence[float]) -> bytes:
        return self._struct.pack(self._length, FRAME, monotonic, missed, *values)


class Decoder:
    """A decoder that splits a stream of bytes, fed in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that `data` completes, as (kind, payload).

        Raises:
            WireError: a kind is unknown, or a length absurd.
        """
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
    """Return the content of a hello or a notice; raise a WireError if it is not a JSON object."""
    try:
        content = json.loads(payload)
    except ValueError as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WireError(f"not a JSON object: {payload[:80]!r}")
    return content


def decode_frame(payload: bytes) -> Frame:
    """Return the content of a frame; raise a WireError if it is cut short."""
    if len(payload) < _STAMP.size or (len(payload) - _STAMP.size) % 4:
        raise WireError(f"a frame of {len(payload)} bytes")
    monotonic, missed = _STAMP.unpack_from(payload)
    values = array("f", payload[_STAMP.size :])
    if sys.byteorder == "big":
        values.byteswap()
    return Frame(monotonic, missed, values)
