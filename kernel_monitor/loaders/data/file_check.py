"""A strict check of every image before DALI decodes it; the result is kept for as long as the file stays the same.

DALI 2.4 raises at a file whose header does not parse, and when it reads such files again it can end the process. So
DALI gets a file only after its header was parsed here from end to end, and if it is of a kind for which DALI's pixels
equal Pillow's. The torchvision path decodes all other files, and the reason is kept.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import time
import zlib
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from PIL import Image

# ---- Parsers of the image formats that DALI decodes exactly as Pillow does: JPEG, PNG, BMP and WebP.

SOI = b"\xff\xd8"
PNG = b"\x89PNG\r\n\x1a\n"
UNKNOWN = "neither a JPEG, a PNG, a BMP nor a WebP file"

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and RSTn: no length
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_PROGRESSIVE = 0xC2
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_DQT, _SOS, _EOI = 0xDB, 0xDA, 0xD9
_BETWEEN_SCANS = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})  # DHT, DQT, DRI, COM, APPn
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither stuffing, nor RSTn, nor fill

_DEPTHS = {0: (1, 2, 4, 8), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}  # by colour type, PNG table 11.1, not 16
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
_TEXT = 1000  # bytes of compressed texts; more (zlib: 1032 to 1) may inflate beyond the 1 MB that Pillow reads


class _NotForDali(Exception):
    """DALI must not decode this image; the message is the reason."""


def _checked(height: int, width: int) -> tuple[int, int]:
    """Return the size; refuse an image without pixels, or with more pixels than Pillow decodes without a warning."""
    if height <= 0 or width <= 0:
        raise _NotForDali("the image has no pixels")
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise _NotForDali("the image is larger than Pillow's limit for decompression bombs")
    return height, width


def _jpeg(data: bytes) -> tuple[int, int]:
    """Parse the markers; return height and width."""
    frame, size = b"", (0, 0)
    sequential = False
    scanned: list[int] = []  # components of the scans so far
    tables: set[int] = set()
    at = len(SOI)
    while True:
        if at + 4 > len(data):
            if data[at : at + 2] == b"\xff\xd9" and scanned:
                break
            raise _NotForDali("the JPEG is cut off")
        if data[at] != 0xFF:
            raise _NotForDali("the JPEG header is damaged")
        marker = data[at + 1]
        if marker == _EOI and scanned:
            break
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _STANDALONE and not scanned:
            at += 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end > len(data):
            raise _NotForDali("the JPEG is cut off")
        if marker in _OTHER_FRAMES:
            raise _NotForDali("a JPEG of an uncommon kind (lossless, hierarchical or arithmetic)")
        if end < at + 4 or marker in (0x00, 0xD8, _EOI) or (scanned and marker not in _BETWEEN_SCANS | {_SOS}):
            raise _NotForDali("the JPEG header is damaged")
        if marker in _SEQUENTIAL or marker == _PROGRESSIVE:
            if frame:
                raise _NotForDali("the JPEG header is damaged")
            frame, sequential = data[at + 4 : end], marker != _PROGRESSIVE
            size = _frame(frame)
        elif marker == _DQT:
            tables |= _tables(data[at + 4 : end])
        elif marker == _SOS:
            if not frame:
                raise _NotForDali("the JPEG has no frame header")
            if not tables.issuperset(frame[8::3]):
                raise _NotForDali("the JPEG lacks a quantisation table")
            components = _scan(data[at + 4 : end], frame)
            if sequential and any(component in scanned for component in components):
                raise _NotForDali("the JPEG has a scan twice")
            scanned += components
            found = _AFTER_SCAN.search(data, end)
            if found is None:
                raise _NotForDali("the JPEG is cut off")
            end = found.start()
        at = end
    return size


def _tables(body: bytes) -> set[int]:
    """Read the numbers of the quantisation tables (B.2.4.1) that a segment defines."""
    found = set()
    while body:
        length = 129 if body[0] >> 4 else 65
        if len(body) < length:
            raise _NotForDali("the JPEG quantisation tables are damaged")
        found.add(body[0] & 15)
        body = body[length:]
    return found


def _frame(body: bytes) -> tuple[int, int]:
    """Read a frame header (B.2.2): precision, size, and each component's sampling factors."""
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise _NotForDali("the JPEG frame header is damaged")
    precision, height, width, components = struct.unpack_from(">BHHB", body)
    if precision != 8 or components not in (1, 3):
        raise _NotForDali(f"a JPEG with {components} components of {precision} bits")
    if any(not 1 <= factors >> 4 <= 4 or not 1 <= factors & 15 <= 4 for factors in body[7::3]):
        raise _NotForDali("the JPEG frame header is damaged")
    return _checked(height, width)


def _scan(body: bytes, frame: bytes) -> list[int]:
    """Return the components of the frame in a scan, from its header (B.2.3)."""
    components = list(body[1:-3:2])
    if not 1 <= body[0] <= 4 or len(body) != 4 + 2 * body[0] or not set(components) <= set(frame[6::3]):
        raise _NotForDali("a JPEG scan header is damaged")
    return components


def _png(data: bytes, *, deep: bool = False) -> tuple[int, int]:
    """Parse the chunks (ISO/IEC 15948, clause 5) with their checksums; return height and width.

    `deep`: whether grey of 16 bits is allowed.
    """
    view = memoryview(data)
    at, text, before = len(PNG), 0, b""
    size: tuple[int, int] | None = None
    kinds: set[bytes] = set()
    colours = -1
    while before != b"IEND":
        length = int.from_bytes(data[at : at + 4], "big")
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if end > len(data):
            raise _NotForDali("the PNG is cut off")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise _NotForDali("a checksum of the PNG is wrong")
        if (kind == b"IHDR") != (size is None):
            raise _NotForDali("the PNG header is damaged")
        if kind == b"IHDR":
            size, colours = _png_header(data[at + 8 : end - 4], deep=deep)
        elif kind in _ANIMATION:
            raise _NotForDali("an animated PNG")
        elif kind == b"PLTE":
            if length % 3 or not 0 < length <= 768 or kinds & {b"PLTE", b"tRNS", b"IDAT"}:
                raise _NotForDali("the PNG palette is damaged")
        elif kind == b"IDAT":
            if (colours == 3 and b"PLTE" not in kinds) or (b"IDAT" in kinds and before != b"IDAT"):
                raise _NotForDali("the PNG's chunks are out of order")
        elif kind == b"zTXt" or (kind == b"iTXt" and data[data.find(0, at + 8, end) + 1]):
            text += length
        elif kind != b"IEND" and not kind[0] & 0x20:
            raise _NotForDali("a PNG with a critical chunk of a kind of its own")
        kinds.add(kind)
        before, at = kind, end
    if size is None or b"IDAT" not in kinds or at != len(data):
        raise _NotForDali("the PNG has no pixels or has data after its end")
    if text > _TEXT:
        raise _NotForDali("a PNG with long compressed texts")
    return size


def _png_header(body: bytes, *, deep: bool) -> tuple[tuple[int, int], int]:
    """Read the size and the colour type."""
    if len(body) != 13:
        raise _NotForDali("the PNG header is damaged")
    width, height, depth, colours, compression, filtering, interlace = struct.unpack(">II5B", body)
    deep = deep and (depth, colours) == (16, 0)
    if depth == 16 and not deep:
        raise _NotForDali("a PNG of 16 bits")
    if (depth not in _DEPTHS.get(colours, ()) and not deep) or compression or filtering:
        raise _NotForDali("the PNG header is damaged")
    if interlace:
        raise _NotForDali("an interlaced PNG")
    return _checked(height, width), colours


def _bmp(data: bytes) -> tuple[int, int]:
    """Read the headers, and check that the pixels are there."""
    if len(data) < 54:
        raise _NotForDali("the BMP is cut off")
    offset, header, width, height, planes, bits, compression, colours = struct.unpack_from("<10xIIiiHHI12xI", data)
    if header != 40 or planes != 1 or compression or bits not in (8, 24):
        raise _NotForDali("a BMP of an uncommon kind")
    table = 0 if bits == 24 else 4 * (colours or 256)
    if colours > 256 or offset != 54 + table:
        raise _NotForDali("the BMP header is damaged")
    size = _checked(height, width)
    if len(data) != offset + (width * bits + 31) // 32 * 4 * height:
        raise _NotForDali("the BMP is cut off or has data after its end")
    return size


def _webp(data: bytes) -> tuple[int, int]:
    """Read the headers of one frame and nothing else (RFC 9649, 2.5 and 2.6).

    The extended kind, with metadata, animation or an alpha channel of its own, is refused: where such files are
    damaged, Pillow and DALI have been seen to differ.
    """
    kind, length = data[12:16], int.from_bytes(data[16:20], "little")
    if data[8:12] != b"WEBP":
        raise _NotForDali(UNKNOWN)
    if kind not in (b"VP8 ", b"VP8L"):
        raise _NotForDali("a WebP of the extended kind")
    if int.from_bytes(data[4:8], "little") + 8 != len(data) or 20 + length + length % 2 != len(data):
        raise _NotForDali("the WebP is cut off or has data after its end")
    return _webp_frame(kind, data[20 : min(20 + length, 30)])


def _webp_frame(kind: bytes, body: bytes) -> tuple[int, int]:
    """Read the size from a lossy (RFC 6386, 9.1) or lossless (RFC 9649, 3.4) frame header."""
    if kind == b"VP8 ":
        if len(body) < 10 or body[0] & 1 or body[3:6] != b"\x9d\x01\x2a":
            raise _NotForDali("the WebP header is damaged")
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", body, 6))
        return _checked(height, width)
    if len(body) < 5 or body[0] != 0x2F or body[4] >> 5:
        raise _NotForDali("the WebP header is damaged")
    bits = int.from_bytes(body[1:5], "little")
    return _checked((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)


_WALKS = {SOI: _jpeg, PNG: _png, b"BM": _bmp, b"RIFF": _webp}
"""The parser for files that begin with these bytes; it returns (height, width), pixels, or raises `_NotForDali`."""


HEAD = 65536  # bytes of the first read
LONGEST = 64 << 20  # bytes; files are read whole, by several threads at once
PATIENCE = 0.003  # s; a batch whose files take longer to check is on slow storage, and threads check the rest of it
_THREADS = 16
_FAR = 1000  # files; a data set's own numbers may be any, and a table is not made for them

ORIENTATION = 0x0112  # tag of EXIF
UNKNOWN_MODE = "unknown"
_IRREGULAR = "not a regular file"


class Facts(NamedTuple):
    """The result of checking an image."""

    height: int  # height, width: pixels; 0 where `reason` is set
    width: int
    reason: str | None  # why DALI must not read it, None where it may
    turned: bool = False  # whether its EXIF orientation is another than that of its pixels


def check_bytes(data: bytes, *, deep: bool = False) -> Facts:
    """Return the facts of an encoded image in memory; they are not kept.

    `deep`: whether DALI is to decode a PNG in grey to 16 bits.
    """
    try:
        for magic, walk in _WALKS.items():
            if data.startswith(magic):
                return Facts(*(_png(data, deep=True) if deep and magic == PNG else walk(data)), None, turned(data))
    except _NotForDali as refusal:
        return Facts(0, 0, str(refusal))
    return Facts(0, 0, UNKNOWN)


def mode_of(file: str | bytes) -> str:
    """Return the mode in which Pillow opens a file (a path, or its content); "unknown" if it cannot."""
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            return image.mode
    except Exception:  # noqa: BLE001 - whatever Pillow raises; who opens the image meets it again
        return UNKNOWN_MODE


def turned(data: bytes) -> bool:
    """Return whether an image's EXIF orientation is another than that of its pixels, or cannot be read."""
    if b"Exif" not in data and b"eXIf" not in data:
        return False
    try:
        with Image.open(io.BytesIO(data)) as image:
            return bool(image.getexif().get(ORIENTATION, 1) != 1)
    except Exception:  # noqa: BLE001 - whatever Pillow raises at a damaged block; then it is not known
        return True


def _check_file(path: str) -> Facts:
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return Facts(0, 0, _IRREGULAR)
        if status.st_size > LONGEST:
            return Facts(0, 0, "a file of more than 64 MB")
        data = file.read(min(status.st_size, HEAD))
        if status.st_size > HEAD and data.startswith(tuple(_WALKS)):  # else these bytes are enough to refuse it
            data += file.read(status.st_size - HEAD)
        return check_bytes(data)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking: a named pipe without a writer may have taken its place."""
    return os.open(path, flags | os.O_NONBLOCK)


class FileTable:
    """A table of the facts of a data set's files, in flat arrays of 17 bytes per file; it grows when needed."""

    def __init__(self, files: int) -> None:
        # Hash of path, size, modification time, change time and inode; 0: not checked yet. The last two differ for a
        # file that replaced another with the same size and modification time, as by `cp -p` or from an archive.
        self._seen, self._height, self._width = array("q"), array("I"), array("I")
        self._mode = array("B")  # place among `_modes`
        self._grow(files)
        self._modes = [""]  # the first one: not read yet
        self._reasons: dict[int, str] = {}
        self._turned: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None

    def check(self, number: int, path: str) -> Facts:
        """Return the facts of file `number` of the data set; parse it if it is new or has changed.

        A file that is missing or unreadable has a reason, too: the torchvision path then raises its error.
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
            facts = _check_file(path)
        except OSError as error:  # not remembered: a network may be back at the next look
            return Facts(0, 0, f"cannot be read: {error.strerror}")
        if facts.reason is None:
            self._reasons.pop(number, None)
        else:
            self._reasons[number] = facts.reason
        (self._turned.add if facts.turned else self._turned.discard)(number)
        self._height[number], self._width[number], self._seen[number] = facts.height, facts.width, seen
        self._mode[number] = 0
        return facts

    def mode(self, number: int, path: str) -> str:
        """Return the mode in which Pillow opens a file that was checked; "unknown" if it cannot."""
        if not 0 <= number < len(self._mode):
            return mode_of(path)
        if not self._mode[number]:
            mode = mode_of(path)
            if mode not in self._modes:
                self._modes.append(mode)
            self._mode[number] = self._modes.index(mode)
        return self._modes[self._mode[number]]

    def check_all(self, files: Sequence[tuple[int, str]]) -> list[Facts]:
        """Return the facts of a batch's files, listed as (number, path).

        If that takes longer than `PATIENCE`, the storage is slow: several threads then check the rest of the batch.
        """
        deadline = time.perf_counter() + PATIENCE
        found: list[Facts] = []
        for number, path in files:
            if time.perf_counter() > deadline:
                break
            found.append(self.check(number, path))
        if len(found) < len(files):
            for number, path in files:
                self._place(number, path)  # the table grows now, not while the threads use it
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "kernel-monitor-files")
            rest = files[len(found) :]
            checked: Iterable[Facts]
            try:
                checked = self._pool.map(lambda file: self.check(*file), rest)
            except RuntimeError:  # a training thread outlives the main thread: Python then starts no more threads
                checked = [self.check(*file) for file in rest]
            found += checked
        return found

    def close(self) -> None:
        """End the threads, if there are any; the facts are kept."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _place(self, number: int, path: str) -> int:
        """Return a file's place in the arrays; a file with no number (-1), or a far larger one, shares a place."""
        if 0 <= number < len(self._seen):
            return number
        if 0 <= number <= 2 * len(self._seen) + _FAR:
            self._grow(number + 1)
            return number
        self._grow(1)
        return hash(path) % len(self._seen)

    def _grow(self, files: int) -> None:
        more = files - len(self._seen)
        if more > 0:
            more = max(more, len(self._seen))
            for column in (self._seen, self._height, self._width, self._mode):
                column.frombytes(bytes(more * column.itemsize))
