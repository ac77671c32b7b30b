"""A strict look at every image file before DALI may see it.

DALI 2.4 raises at a file whose header does not parse, and when it meets such files again it can end the process.
So a JPEG goes to DALI only after its markers were walked here (SOI, every segment up to SOF and SOS, EOI at the
end); everything else is decoded by torchvision's path, with the reason kept. The verdict is cached by path, size
and modification time; the walk reads the header and the last bytes, once per file.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

import numpy as np
from PIL import Image

HEAD = 65536  # bytes of the first read; headers with large profiles take more reads
TAIL = 64

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_FRAMES = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive"}
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})


class NotForDali(Exception):
    """Why a file is not handed to DALI."""


class Facts(NamedTuple):
    """What is known of a file.

    Attributes:
        height, width: pixels; 0 where `reason` is set.
        reason: why DALI must not read it, None where it may.
    """

    height: int
    width: int
    reason: str | None


def jpeg_size(path: str, length: int) -> tuple[int, int]:
    """Walk a JPEG's markers and return its (height, width) in pixels.

    Args:
        path: of a regular file.
        length: of the file, bytes.

    Raises:
        NotForDali: it is not a whole JPEG that DALI decodes as Pillow does.
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - once per file, on the loop's own time
        head = file.read(HEAD)
        if head[:2] != b"\xff\xd8":
            raise NotForDali("not a JPEG file")
        size: tuple[int, int] | None = None
        at = 2
        while True:
            if at + 4 > len(head):
                more = file.read(HEAD)
                if not more:
                    raise NotForDali("the JPEG header is cut off")
                head += more
                continue
            if head[at] != 0xFF:
                raise NotForDali("the JPEG header is damaged")
            marker = head[at + 1]
            if marker == 0xFF:  # fill byte
                at += 1
                continue
            if marker in _STANDALONE:
                at += 2
                continue
            if marker in (0x00, 0xD8, 0xD9):
                raise NotForDali("the JPEG header is damaged")
            end = at + 2 + int.from_bytes(head[at + 2 : at + 4], "big")
            if end < at + 4 or end > length:
                raise NotForDali("the JPEG header is damaged")
            if end > len(head):
                more = file.read(max(HEAD, end - len(head)))
                if not more:
                    raise NotForDali("the JPEG header is cut off")
                head += more
                continue
            if marker in _OTHER_FRAMES:
                raise NotForDali("a JPEG of an uncommon kind (lossless, hierarchical or arithmetic)")
            if marker in _FRAMES:
                size = _frame(head[at + 4 : end])
            if marker == 0xDA:
                break
            at = end
        if size is None:
            raise NotForDali("the JPEG has no frame header")
        file.seek(max(end, length - TAIL))
        if not file.read(TAIL).rstrip(b"\x00\r\n ").endswith(b"\xff\xd9"):
            raise NotForDali("the JPEG is truncated or has data after its end")
    return size


def _frame(body: bytes) -> tuple[int, int]:
    """Read a frame header: precision, height, width, number of components."""
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise NotForDali("the JPEG frame header is damaged")
    precision, components = body[0], body[5]
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    if precision != 8 or components not in (1, 3):
        raise NotForDali(f"a JPEG with {components} components of {precision} bits")
    if not height or not width:
        raise NotForDali("the JPEG frame header is damaged")
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise NotForDali("the image is larger than Pillow's limit for decompression bombs")
    return height, width


class FileTable:
    """Facts about the files of one data set, in flat arrays: 34 bytes a file, so a million files fit."""

    def __init__(self, files: int) -> None:
        self._path = np.zeros(files, dtype=np.int64)  # hash of the path
        self._bytes = np.full(files, -1, dtype=np.int64)
        self._changed = np.zeros(files, dtype=np.int64)  # modification time, ns
        self._height = np.zeros(files, dtype=np.uint16)
        self._width = np.zeros(files, dtype=np.uint16)
        self._reasons: dict[int, str] = {}

    def look(self, number: int, path: str) -> Facts:
        """Return the facts of file `number` of the data set, walking it if it is new or has changed.

        A file that is missing or unreadable has a reason too: the torchvision path then raises its error.
        """
        try:
            status = os.stat(path)  # noqa: PTH116 - once per sample, on the loop's own time
        except OSError as error:
            return Facts(0, 0, f"cannot be read: {error.strerror}")
        if not stat.S_ISREG(status.st_mode):
            return Facts(0, 0, "not a regular file")
        if number >= len(self._bytes):
            self._grow(number + 1)
        name = hash(path)
        known = (
            self._bytes[number] == status.st_size
            and self._changed[number] == status.st_mtime_ns
            and self._path[number] == name
        )
        if not known:
            self._walk(number, path, status.st_size)
            self._path[number], self._changed[number] = name, status.st_mtime_ns
            self._bytes[number] = status.st_size
        return Facts(int(self._height[number]), int(self._width[number]), self._reasons.get(number))

    def _walk(self, number: int, path: str, length: int) -> None:
        height = width = 0
        self._reasons.pop(number, None)
        try:
            height, width = jpeg_size(path, length)
        except NotForDali as refusal:
            self._reasons[number] = str(refusal)
        except OSError as error:
            self._reasons[number] = f"cannot be read: {error.strerror}"
        self._height[number], self._width[number] = height, width

    def _grow(self, files: int) -> None:
        files = max(files, 2 * len(self._bytes))
        for name in ("_path", "_bytes", "_changed", "_height", "_width"):
            old = getattr(self, name)
            new = np.full(files, -1 if name == "_bytes" else 0, dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
