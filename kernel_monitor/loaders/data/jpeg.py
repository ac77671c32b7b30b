"""The walk of a JPEG's markers (ITU-T T.81, annex B), from SOI through every segment and scan to EOI.

The scans are walked too: Pillow reads to the end of the image and stumbles over a marker that does not belong there,
DALI stops at the last pixel. What lies after EOI (further pictures, a film, padding) neither of them reads.
"""

from __future__ import annotations

import re

from .refusal import NotForDali, checked_size

SOI = b"\xff\xd8"

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and RSTn: no length
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_PROGRESSIVE = 0xC2
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_DQT, _SOS, _EOI = 0xDB, 0xDA, 0xD9
_BETWEEN_SCANS = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})  # DHT, DQT, DRI, COM, APPn
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither stuffing, nor RSTn, nor fill


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Walk what begins with SOI and return its (height, width), pixels.

    Raises:
        NotForDali: it is not a whole JPEG that DALI decodes as Pillow does.
    """
    frame, size = b"", (0, 0)
    sequential = False
    scanned: list[int] = []  # components of the scans so far
    tables: set[int] = set()
    at = len(SOI)
    while True:
        if at + 4 > len(data):
            if data[at : at + 2] == b"\xff\xd9" and scanned:
                break
            raise NotForDali("the JPEG is cut off")
        if data[at] != 0xFF:
            raise NotForDali("the JPEG header is damaged")
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
            raise NotForDali("the JPEG is cut off")
        if marker in _OTHER_FRAMES:
            raise NotForDali("a JPEG of an uncommon kind (lossless, hierarchical or arithmetic)")
        if end < at + 4 or marker in (0x00, 0xD8, _EOI) or (scanned and marker not in _BETWEEN_SCANS | {_SOS}):
            raise NotForDali("the JPEG header is damaged")
        if marker in _SEQUENTIAL or marker == _PROGRESSIVE:
            if frame:
                raise NotForDali("the JPEG header is damaged")
            frame, sequential = data[at + 4 : end], marker != _PROGRESSIVE
            size = _frame(frame)
        elif marker == _DQT:
            tables |= _tables(data[at + 4 : end])
        elif marker == _SOS:
            if not frame:
                raise NotForDali("the JPEG has no frame header")
            if not tables.issuperset(frame[8::3]):
                raise NotForDali("the JPEG lacks a quantisation table")
            components = _scan(data[at + 4 : end], frame)
            if sequential and any(component in scanned for component in components):
                raise NotForDali("the JPEG has a scan twice")
            scanned += components
            found = _AFTER_SCAN.search(data, end)
            if found is None:
                raise NotForDali("the JPEG is cut off")
            end = found.start()
        at = end
    return size


def _tables(body: bytes) -> set[int]:
    """Read the numbers of the quantisation tables (B.2.4.1) that a segment defines."""
    found = set()
    while body:
        length = 129 if body[0] >> 4 else 65
        if len(body) < length:
            raise NotForDali("the JPEG quantisation tables are damaged")
        found.add(body[0] & 15)
        body = body[length:]
    return found


def _frame(body: bytes) -> tuple[int, int]:
    """Read a frame header (B.2.2): precision, size, and each component's sampling factors."""
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise NotForDali("the JPEG frame header is damaged")
    precision, components = body[0], body[5]
    if precision != 8 or components not in (1, 3):
        raise NotForDali(f"a JPEG with {components} components of {precision} bits")
    if any(not 1 <= factors >> 4 <= 4 or not 1 <= factors & 15 <= 4 for factors in body[7::3]):
        raise NotForDali("the JPEG frame header is damaged")
    return checked_size(int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big"))


def _scan(body: bytes, frame: bytes) -> list[int]:
    """Read a scan header (B.2.3): which of the frame's components it holds."""
    components = list(body[1:-3:2])
    if not 1 <= body[0] <= 4 or len(body) != 4 + 2 * body[0] or not set(components) <= set(frame[6::3]):
        raise NotForDali("a JPEG scan header is damaged")
    return components
