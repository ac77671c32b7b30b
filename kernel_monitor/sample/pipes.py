"""The sampler's two pipes: waiting on stdin, and a stdout that never holds up the clock."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from collections import deque

_LONGEST_LINE = 1 << 20
_MOST_KEPT = 1 << 20  # bytes: a kernel that was stopped for a day must not fill the memory


class Input:
    """Lines that arrive on the pipe `fd`; waiting for them is how the sampler sleeps."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._lines: list[bytes] = []
        self._chunks: queue.SimpleQueue[bytes] | None = None
        if sys.platform == "win32":  # select() takes no pipes there: a thread reads
            self._chunks = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(self._chunks,), name="stdin", daemon=True).start()

    def wait(self, timeout: float) -> bool:
        """Sleep for `timeout` seconds, less if something arrives; False once the pipe has ended."""
        if self._chunks is not None:
            try:
                data = self._chunks.get(timeout=timeout)
            except queue.Empty:
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
        if len(self._buffer) > _LONGEST_LINE:
            self._lines.append(self._buffer)
            self._buffer = b""
        return True

    def lines(self) -> list[bytes]:
        """The lines that arrived since the last call, without their ends."""
        lines, self._lines = self._lines, []
        return lines

    def _read(self, chunks: queue.SimpleQueue[bytes]) -> None:
        while True:
            data = os.read(self._fd, 65536)
            chunks.put(data)
            if not data:
                return


class Output:
    """Writes whole messages into the pipe `fd`; without room, a message is kept for later or dropped, never waited for.

    A reader that stands still would otherwise block the sampler, which then would not notice the reader's end.
    (On Windows, whose pipes are always blocking, writing waits.)
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest: deque[bytes] = deque()
        if sys.platform != "win32":
            os.set_blocking(fd, False)

    def send(self, message: bytes, *, keep: bool = False) -> bool:
        """Send `message`, now or, if it is to be kept, as soon as there is room; False if it was dropped.

        An OSError says that the pipe is broken: no process has its other end open any more.
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
        if done == 0 and (not keep or sum(map(len, self._rest)) + len(message) > _MOST_KEPT):
            return False
        self._rest.append(message[done:])  # a message begun must be ended, or the reader loses its place
        return True

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
