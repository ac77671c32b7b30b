"""Messages over a pipe between the kernel and the driver process: a pickled tuple, then buffers as they are."""

from __future__ import annotations

import pickle
import struct
import threading
from collections.abc import Sequence
from io import RawIOBase
from typing import Any

import numpy as np

_HEAD = struct.Struct("<II")  # bytes of the pickled tuple, number of buffers
_SIZE = struct.Struct("<Q")  # bytes of a buffer
PIPE_BYTES = 1 << 20  # what Linux lets a process without privileges ask for
F_SETPIPE_SZ = 1031  # <linux/fcntl.h>


class Channel:
    """Both ends are ours. One thread receives; any thread sends."""

    def __init__(self, source: RawIOBase, sink: RawIOBase) -> None:
        self._source = source
        self._sink = sink
        self._sending = threading.Lock()
        _widen(sink)

    def send(self, message: tuple[Any, ...], buffers: Sequence[Any] = ()) -> None:
        """Send a tuple of plain values, and buffers of bytes.

        Raises:
            OSError: the other end is gone.
        """
        views = [memoryview(buffer) for buffer in buffers]
        text = pickle.dumps(message)
        head = _HEAD.pack(len(text), len(views)) + b"".join(_SIZE.pack(view.nbytes) for view in views)
        with self._sending:
            for part in (memoryview(head), memoryview(text), *views):
                self._write(part)

    def _write(self, part: memoryview) -> None:
        done = 0
        while done < part.nbytes:
            done += self._sink.write(part[done:]) or 0

    def receive(self) -> tuple[tuple[Any, ...], list[Any]]:
        """Wait for a message and its buffers, each uint8[bytes].

        Raises:
            EOFError: the other end is closed.
        """
        size, count = _HEAD.unpack(self._read(_HEAD.size))
        sizes = [_SIZE.unpack(self._read(_SIZE.size))[0] for _ in range(count)]
        message = pickle.loads(self._read(size))  # noqa: S301 - written by our own process
        return message, [self._read(each) for each in sizes]

    def _read(self, size: int) -> Any:
        found: Any = np.empty(size, dtype=np.uint8)
        view, done = memoryview(found), 0
        while done < size:
            read = self._source.readinto(view[done:])
            if not read:
                raise EOFError
            done += read
        return found

    def close(self) -> None:
        """Close the end that sends: the other side gets EOF. Waits for a message that is being sent."""
        with self._sending:
            self._sink.close()


def _widen(sink: RawIOBase) -> None:
    """Let the pipe hold more than 64 KB, so that a batch takes fewer turns of the two processes."""
    try:
        import fcntl

        fcntl.fcntl(sink.fileno(), F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, OSError):  # not Linux, or the user's pipes are used up: it works with less
        return
