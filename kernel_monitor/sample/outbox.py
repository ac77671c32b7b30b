"""The kernel's queue of messages to the sampler: lines wait here until the pipe has room, so that no caller waits."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

BACKLOG = 1 << 20
"""Bytes that may wait for a sampler that does not read; beyond, the oldest `FREQUENT` lines are dropped first."""
FREQUENT = ("values", "steps")
FULL_S = 0.05  # how long the thread waits before it tries a full pipe again
JOIN_S = 1.0  # how long `close` waits for the thread, which may be blocked in a write (Windows)


class _Line(NamedTuple):
    data: bytes
    frequent: bool = False
    written: threading.Event | None = None  # set when this line's turn has come


class Outbox:
    """Sends messages down the pipe to the sampler, from a thread of its own (`kernel-monitor-send`).

    The thread writes, never the caller: an interrupt in the middle of a cell's own write would leave half a line.
    """

    def __init__(self) -> None:
        self.dropped = 0  # messages that were dropped because the backlog was full
        self._arrived: SimpleQueue[_Line | None] = SimpleQueue()
        self._waiting: deque[_Line] = deque()
        self._size = 0
        self._done = 0  # bytes of the first line that are written
        self._pipe: int | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-send", daemon=True)
        self._thread.start()

    def put(self, message: dict[str, Any]) -> bool:
        """Take a message (JSON, or NaN); False if it is closed, or the message alone is larger than the backlog."""
        line = _Line(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n", message.get("do") in FREQUENT)
        if self._closed or len(line.data) > BACKLOG:
            return False
        self._arrived.put(line)
        return True

    def connect(self, pipe: int | None) -> None:
        """Write to `pipe` from now on, None for nowhere; a line that was begun is written again as a whole."""
        if pipe is not None and sys.platform != "win32":  # pipes there are always blocking: the thread waits
            os.set_blocking(pipe, False)
        with self._lock:
            self._pipe = pipe
            self._done = 0
        self._arrived.put(None)  # the thread looks again

    def flush(self, seconds: float) -> bool:
        """Wait until all that was put before is written, no longer than `seconds`; whether it is."""
        written = threading.Event()
        self._arrived.put(_Line(b"", written=written))
        return written.wait(seconds)

    def close(self) -> None:
        self._closed = True
        self._arrived.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        full = False
        while not self._closed:
            try:
                line = self._arrived.get(timeout=FULL_S if full else None)
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
            while self._size > BACKLOG:
                at = self._droppable()
                self._size -= len(self._waiting[at].data)
                del self._waiting[at]
                self.dropped += 1

    def _droppable(self) -> int:
        """The oldest frequent line, else the oldest; never a line that was begun."""
        first = 1 if self._done else 0
        return next((at for at in range(first, len(self._waiting)) if self._waiting[at].frequent), first)

    def _write(self) -> bool:
        """Write all lines; False if the pipe is full."""
        with self._lock:
            while self._waiting and self._pipe is not None:
                line = self._waiting[0]
                try:
                    self._done += os.write(self._pipe, line.data[self._done :]) if line.data else 0
                except BlockingIOError:
                    return False
                except OSError:
                    self._pipe, self._done = None, 0  # that sampler has ended; the next one gets the line
                    return True
                if self._done == len(line.data):
                    self._waiting.popleft()
                    self._size -= len(line.data)
                    self._done = 0
                    if line.written is not None:
                        line.written.set()
            return True
