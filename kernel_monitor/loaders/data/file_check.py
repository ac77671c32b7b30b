"""A strict look at every image before DALI may see it, remembered for as long as the file stays the same.

DALI 2.4 raises at a file whose header does not parse, and when it meets such files again it can end the process.
So a file goes to DALI only after its header was walked here from end to end, and is of a kind whose pixels are then
equal to Pillow's; everything else is decoded by torchvision's path, with the reason kept.
"""

from __future__ import annotations

import io
import os
import stat
import time
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from PIL import Image

from .image_formats import UNKNOWN, WALKS, NotForDali

HEAD = 65536  # bytes of the first read
LONGEST = 64 << 20  # bytes; files are read whole, by several threads at once
PATIENCE = 0.003  # s; a batch whose files take longer to look at is on slow storage and is shared out to threads
THREADS = 16
FAR = 1000  # files; a data set's own numbers may be any, and a table is not made for them

ORIENTATION = 0x0112  # tag of EXIF
_IRREGULAR = "not a regular file"


class Facts(NamedTuple):
    """What is known of an image."""

    height: int  # height, width: pixels; 0 where `reason` is set
    width: int
    reason: str | None  # why DALI must not read it, None where it may
    turned: bool = False  # whether its EXIF orientation is another than that of its pixels


def look_bytes(data: bytes) -> Facts:
    """Return the facts of an encoded image in memory; nothing is remembered."""
    try:
        for magic, walk in WALKS.items():
            if data.startswith(magic):
                return Facts(*walk(data), None, turned(data))
    except NotForDali as refusal:
        return Facts(0, 0, str(refusal))
    return Facts(0, 0, UNKNOWN)


def turned(data: bytes) -> bool:
    """Whether an image's EXIF orientation is another than that of its pixels, or cannot be read."""
    if b"Exif" not in data and b"eXIf" not in data:
        return False
    try:
        with Image.open(io.BytesIO(data)) as image:
            return bool(image.getexif().get(ORIENTATION, 1) != 1)
    except Exception:  # noqa: BLE001 - whatever Pillow raises at a damaged block; then it is not known
        return True


def _look_file(path: str) -> Facts:
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return Facts(0, 0, _IRREGULAR)
        if status.st_size > LONGEST:
            return Facts(0, 0, "a file of more than 64 MB")
        data = file.read(min(status.st_size, HEAD))
        if status.st_size > HEAD and data.startswith(tuple(WALKS)):  # else these bytes are enough to refuse it
            data += file.read(status.st_size - HEAD)
        return look_bytes(data)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, without waiting for a writer if a named pipe has taken its place since it was last seen."""
    return os.open(path, flags | os.O_NONBLOCK)


class FileTable:
    """Facts about the files of one data set, in flat arrays: 16 bytes a file, so a million files fit.

    It is made for a number of files, and grows with what is asked.
    """

    def __init__(self, files: int) -> None:
        # Hash of path, size, modification and change time and inode; 0: not looked at yet. The last two notice what
        # was put in a file's place with its size and time kept, as `cp -p` and archives do.
        self._seen, self._height, self._width = array("q"), array("I"), array("I")
        self._grow(files)
        self._reasons: dict[int, str] = {}
        self._turned: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None

    def look(self, number: int, path: str) -> Facts:
        """Return the facts of file `number` of the data set, walking it if it is new or has changed.

        A file that is missing or unreadable has a reason too: the torchvision path then raises its error.
        """
        number = self._place(number, path)
        try:
            status = os.stat(path)  # noqa: PTH116 - once per sample, on the loop's own time
            if not stat.S_ISREG(status.st_mode):
                return Facts(0, 0, _IRREGULAR)
            seen = hash((path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)) or 1
            if self._seen[number] == seen:
                reason = self._reasons.get(number)
                return Facts(self._height[number], self._width[number], reason, number in self._turned)
            facts = _look_file(path)
        except OSError as error:  # not remembered: a network may be back at the next look
            return Facts(0, 0, f"cannot be read: {error.strerror}")
        if facts.reason is None:
            self._reasons.pop(number, None)
        else:
            self._reasons[number] = facts.reason
        (self._turned.add if facts.turned else self._turned.discard)(number)
        self._height[number], self._width[number], self._seen[number] = facts.height, facts.width, seen
        return facts

    def look_all(self, files: Sequence[tuple[int, str]]) -> list[Facts]:
        """Return the facts of a batch's files, given as (number, path).

        What takes long is the storage: then the rest of the batch is looked at by several threads at once.
        """
        deadline = time.perf_counter() + PATIENCE
        found: list[Facts] = []
        for number, path in files:
            if time.perf_counter() > deadline:
                break
            found.append(self.look(number, path))
        if len(found) < len(files):
            for number, path in files:
                self._place(number, path)  # it grows now, not under the threads' feet
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "kernel-monitor-files")
            rest = files[len(found) :]
            looked: Iterable[Facts]
            try:
                looked = self._pool.map(lambda file: self.look(*file), rest)
            except RuntimeError:  # the main thread has ended, and a thread that trains goes on: Python starts no more
                looked = [self.look(*file) for file in rest]
            found += looked
        return found

    def close(self) -> None:
        """End the threads, if there are any; what is known stays."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _place(self, number: int, path: str) -> int:
        """Where a file is kept. Without a number (-1), or with one far beyond the others, it shares a place."""
        if 0 <= number <= 2 * len(self._seen) + FAR:
            self._grow(number + 1)
            return number
        self._grow(1)
        return hash(path) % len(self._seen)

    def _grow(self, files: int) -> None:
        more = files - len(self._seen)
        if more > 0:
            more = max(more, len(self._seen))
            for column in (self._seen, self._height, self._width):
                column.frombytes(bytes(more * column.itemsize))
