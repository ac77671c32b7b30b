"""The walks of the other formats that DALI decodes exactly as Pillow does: PNG, BMP and WebP."""

from __future__ import annotations

import zlib

from .refusal import NotForDali, checked_size

PNG = b"\x89PNG\r\n\x1a\n"
BMP = b"BM"
RIFF = b"RIFF"
UNKNOWN = "neither a JPEG, a PNG, a BMP nor a WebP file"

_DEPTHS = {0: (1, 2, 4, 8), 2: (8,), 3: (1, 2, 4, 8), 4: (8,), 6: (8,)}  # by colour type, PNG table 11.1, not 16
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
TEXT = 1000  # bytes of compressed texts; more (zlib: 1032 to 1) may inflate beyond the 1 MB that Pillow reads


def png_size(data: bytes) -> tuple[int, int]:
    """Walk a PNG's chunks (ISO/IEC 15948, clause 5), every checksum included; return its (height, width), pixels.

    Raises:
        NotForDali: it is not a whole PNG that DALI decodes as Pillow does.
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
            raise NotForDali("the PNG is cut off")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise NotForDali("a checksum of the PNG is wrong")
        if (kind == b"IHDR") != (size is None):
            raise NotForDali("the PNG header is damaged")
        if kind == b"IHDR":
            size, colours = _header(data[at + 8 : end - 4])
        elif kind in _ANIMATION:
            raise NotForDali("an animated PNG")
        elif kind == b"PLTE":
            if length % 3 or not 0 < length <= 768 or kinds & {b"PLTE", b"tRNS", b"IDAT"}:
                raise NotForDali("the PNG palette is damaged")
        elif kind == b"IDAT":
            if (colours == 3 and b"PLTE" not in kinds) or (b"IDAT" in kinds and before != b"IDAT"):
                raise NotForDali("the PNG's chunks are out of order")
        elif kind == b"zTXt" or (kind == b"iTXt" and data[data.find(0, at + 8, end) + 1]):
            text += length
        elif kind != b"IEND" and not kind[0] & 0x20:
            raise NotForDali("a PNG with a critical chunk of a kind of its own")
        kinds.add(kind)
        before, at = kind, end
    if size is None or b"IDAT" not in kinds or at != len(data):
        raise NotForDali("the PNG has no pixels or has data after its end")
    if text > TEXT:
        raise NotForDali("a PNG with long compressed texts")
    return size


def _header(body: bytes) -> tuple[tuple[int, int], int]:
    if len(body) != 13:
        raise NotForDali("the PNG header is damaged")
    depth, colours, compression, filtering, interlace = body[8:]
    if depth == 16:
        raise NotForDali("a PNG of 16 bits")
    if depth not in _DEPTHS.get(colours, ()) or compression or filtering:
        raise NotForDali("the PNG header is damaged")
    if interlace:
        raise NotForDali("an interlaced PNG")
    return checked_size(int.from_bytes(body[4:8], "big"), int.from_bytes(body[:4], "big")), colours


def bmp_size(data: bytes) -> tuple[int, int]:
    """Read the headers of an uncompressed BMP, check that its pixels are there; return (height, width), pixels.

    Raises:
        NotForDali: it is compressed, of an old kind, or cut off.
    """
    if len(data) < 54:
        raise NotForDali("the BMP is cut off")
    head = data[:54]
    offset, header = int.from_bytes(head[10:14], "little"), int.from_bytes(head[14:18], "little")
    width = int.from_bytes(head[18:22], "little", signed=True)
    height = int.from_bytes(head[22:26], "little", signed=True)
    planes, bits = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
    compression, colours = int.from_bytes(head[30:34], "little"), int.from_bytes(head[46:50], "little")
    if header != 40 or planes != 1 or compression or bits not in (8, 24):
        raise NotForDali("a BMP of an uncommon kind")
    table = 0 if bits == 24 else 4 * (colours or 256)
    if colours > 256 or offset != 54 + table:
        raise NotForDali("the BMP header is damaged")
    size = checked_size(height, width)
    if len(data) != offset + (width * bits + 31) // 32 * 4 * height:
        raise NotForDali("the BMP is cut off or has data after its end")
    return size


def webp_size(data: bytes) -> tuple[int, int]:
    """Read the headers of a WebP that is one frame and nothing else (RFC 9649, 2.5 and 2.6); return (height, width).

    Those of the extended kind, with metadata, animation or an alpha channel of its own, are refused: where they are
    damaged, Pillow and DALI have been seen to differ.

    Raises:
        NotForDali: it is not a whole, simple WebP.
    """
    kind, length = data[12:16], int.from_bytes(data[16:20], "little")
    if data[8:12] != b"WEBP":
        raise NotForDali(UNKNOWN)
    if kind not in (b"VP8 ", b"VP8L"):
        raise NotForDali("a WebP of the extended kind")
    if int.from_bytes(data[4:8], "little") + 8 != len(data) or 20 + length + length % 2 != len(data):
        raise NotForDali("the WebP is cut off or has data after its end")
    return _frame(kind, data[20 : min(20 + length, 30)])


def _frame(kind: bytes, body: bytes) -> tuple[int, int]:
    """Read the size from a lossy (RFC 6386, 9.1) or lossless (RFC 9649, 3.4) frame header."""
    if kind == b"VP8 ":
        if len(body) < 10 or body[0] & 1 or body[3:6] != b"\x9d\x01\x2a":
            raise NotForDali("the WebP header is damaged")
        width, height = (int.from_bytes(body[at : at + 2], "little") & 0x3FFF for at in (6, 8))
        return checked_size(height, width)
    if len(body) < 5 or body[0] != 0x2F or body[4] >> 5:
        raise NotForDali("the WebP header is damaged")
    bits = int.from_bytes(body[1:5], "little")
    return checked_size((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
