"""A corpus of image files, good, odd and bad, each built by code: what a data set may hold that nobody looked at."""

from __future__ import annotations

import io
import os
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 96, 128


@dataclass(frozen=True)
class Case:
    """One entry of the corpus.

    Attributes:
        name: of the case, the last part of the file's path.
        write: makes the file.
        readable: whether Pillow decodes it.
        dali: whether DALI is given it.
    """

    name: str
    write: Callable[[Path], None]
    readable: bool
    dali: bool


def picture(mode: str = "RGB", height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """A smooth picture: engines resize it within a fraction of a grey level."""
    down, across = np.mgrid[0:height, 0:width]
    colours = [127 + 90 * np.sin(down / 17 + k) + 35 * np.cos(across / (11 + 3 * k)) for k in range(3)]
    image = Image.fromarray(np.stack(colours, axis=-1).clip(0, 255).astype(np.uint8))
    if mode in ("RGBA", "LA"):
        image = image.convert(mode)
        image.putalpha(Image.fromarray(((down * 3 + across) % 256).astype(np.uint8)))
    return image.convert(mode, dither=Image.Dither.NONE)


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """A picture in a file format of Pillow's."""
    stream = io.BytesIO()
    (picture() if image is None else image).save(stream, kind, **options)
    return stream.getvalue()


def jpeg(image: Image.Image | None = None, **options: Any) -> bytes:
    return encoded("JPEG", image, **{"quality": 90, **options})


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of a JPEG's segments up to the first scan's header."""
    at = 2
    while True:
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield marker, at, end
        if marker == 0xDA:
            return
        at = end


def find(data: bytes, wanted: int) -> tuple[int, int]:
    """Start and end of a JPEG's first segment of a kind."""
    return next((start, end) for marker, start, end in segments(data) if marker == wanted)


def edited(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def framed(data: bytes, offset: int, new: bytes) -> bytes:
    """A JPEG with bytes of its frame header replaced; `offset` counts from the marker."""
    start = next(start for marker, start, _ in segments(data) if 0xC0 <= marker <= 0xC2)
    return edited(data, start + offset, new)


def with_segments(data: bytes, marker: int, bodies: list[bytes]) -> bytes:
    """A JPEG with segments put in after SOI."""
    added = b"".join(bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body for body in bodies)
    return data[:2] + added + data[2:]


def apart() -> bytes:
    """A baseline JPEG with a scan for each component."""
    planes = [jpeg(plane) for plane in picture("YCbCr").split()]
    first = planes[0]
    frame, frame_end = find(first, 0xC0)
    scan, _ = find(first, 0xDA)
    header = first[frame : frame + 9]
    components = b"".join(bytes((k, 0x11, 0)) for k in (1, 2, 3))
    whole = first[:frame] + edited(header, 2, struct.pack(">H", 17)) + b"\x03" + components + first[frame_end:scan]
    for number, plane in enumerate(planes, 1):
        _, scan_end = find(plane, 0xDA)
        whole += bytes((0xFF, 0xDA, 0, 8, 1, number, 0, 0, 63, 0)) + plane[scan_end:-2]
    return whole + b"\xff\xd9"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with(kind: bytes, body: bytes) -> bytes:
    """A PNG with a chunk put in after its header."""
    data = encoded("PNG")
    return data[:33] + chunk(kind, body) + data[33:]


def interlaced() -> bytes:
    """A grey PNG of 8 x 8 in Adam7 order."""
    pixels = np.asarray(picture("L", 8, 8))
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b"".join(b"\0" + row.tobytes() for y, x, down, across in passes for row in pixels[y::down, x::across])
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def _content(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path must be short
    os.close(folder)


def _special() -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield "missing.jpg", lambda path: None
    yield "folder.jpg", lambda path: path.mkdir()
    yield "pipe.jpg", os.mkfifo
    yield "socket.jpg", _socket
    yield "dangling.jpg", lambda path: path.symlink_to("nowhere.jpg")
    yield "loop.jpg", lambda path: path.symlink_to(path.name)
    yield "device.jpg", lambda path: path.symlink_to("/dev/zero")
    yield "link to a pipe.jpg", lambda path: path.symlink_to("pipe.jpg")


def _by_dali() -> Iterator[tuple[str, bytes]]:
    """What DALI decodes as Pillow does."""
    photo = jpeg()
    yield "plain.jpg", photo
    for number, name in enumerate(("444", "422", "420")):
        yield f"subsampling {name}.jpg", jpeg(subsampling=number)
    square = picture(height=64, width=64)
    yield "subsampling 411.jpg", framed(jpeg(square, subsampling=2), 11, b"\x41")  # as many blocks as 4:2:0
    yield "subsampling 440.jpg", framed(jpeg(square, subsampling=1), 11, b"\x12")  # as many as 4:2:2
    yield "gray.jpg", jpeg(picture("L"))
    yield "progressive.jpg", jpeg(progressive=True)
    yield "progressive gray.jpg", jpeg(picture("L"), progressive=True)
    yield "optimised.jpg", jpeg(optimize=True)
    yield "rgb without a transform.jpg", jpeg(keep_rgb=True)
    yield "restart markers.jpg", jpeg(restart_marker_blocks=3)
    yield "a scan per component.jpg", apart()
    for orientation in range(1, 9):
        yield f"exif {orientation}.jpg", jpeg(exif=exif(orientation))
    yield "garbage behind.jpg", photo + np.random.default_rng(0).bytes(5000)
    yield "a second picture behind.jpg", photo + jpeg(picture("L"))
    yield "zeros behind.jpg", photo + bytes(300)
    yield "many segments.jpg", with_segments(photo, 0xE9, [bytes(60000)] * 60)
    yield "fill bytes.jpg", photo[:2] + b"\xff" * 9 + photo[2:]
    yield "one pixel.jpg", jpeg(picture(height=1, width=1))
    yield "20000 across.jpg", jpeg(picture(height=20, width=20000))
    yield "20000 down.jpg", jpeg(picture(height=20000, width=20))
    yield "bit flipped in its scan.jpg", edited(photo, len(photo) - 900, bytes((photo[-900] ^ 0x10,)))
    yield "JPEG named.png", photo
    yield "plain.png", encoded("PNG")
    for mode in ("L", "LA", "RGBA", "P", "1"):
        yield f"mode {mode}.png", encoded("PNG", picture(mode))
    opaque = picture()
    opaque.putalpha(255)
    yield "opaque alpha.png", encoded("PNG", opaque)
    yield "palette of 4 bits.png", encoded("PNG", picture().quantize(16), bits=4)
    yield "palette with a transparent colour.png", encoded("PNG", picture("P"), transparency=5)
    yield "palette with alpha.png", encoded("PNG", picture("P"), transparency=bytes(range(256)))
    yield "transparent colour.png", encoded("PNG", transparency=(10, 20, 30))
    yield "gamma.png", png_with(b"gAMA", struct.pack(">I", 100000))
    yield "chunk of its own.png", png_with(b"prVT", b"anything")
    yield "plain text.png", png_with(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"x" * 4000)
    yield "exif.png", encoded("PNG", exif=exif(6))
    yield "one pixel.png", encoded("PNG", picture(height=1, width=1))
    yield "PNG named.jpg", encoded("PNG")
    yield "plain.bmp", encoded("BMP")
    yield "gray.bmp", encoded("BMP", picture("L"))
    yield "palette.bmp", encoded("BMP", picture("P"))
    yield "plain.webp", encoded("WEBP", quality=80)
    yield "lossless.webp", encoded("WEBP", lossless=True)
    yield "lossless alpha.webp", encoded("WEBP", picture("RGBA"), lossless=True)


def _by_torchvision() -> Iterator[tuple[str, bytes]]:
    """What Pillow decodes and DALI is not given."""
    yield "cmyk.jpg", jpeg(picture("CMYK"))
    ycck = jpeg(picture("CMYK"))
    adobe, _ = find(ycck, 0xEE)
    yield "ycck.jpg", edited(ycck, adobe + 15, b"\x02")
    yield "16 bits.png", encoded("PNG", Image.fromarray(np.asarray(picture("L")).astype(np.uint16) * 257))
    yield "interlaced.png", interlaced()
    yield "data behind.png", encoded("PNG") + b"more"
    yield "critical chunk of its own.png", png_with(b"PRVT", b"anything")
    yield "animated.png", encoded("PNG", save_all=True, append_images=[picture("L").convert("RGB")])
    long = zlib.compress(np.random.default_rng(2).integers(32, 127, 4000, dtype=np.uint8).tobytes())
    yield "long text.png", png_with(b"zTXt", b"Comment\0\0" + long)
    yield "long text, international.png", png_with(b"iTXt", b"XML\0\1\0\0\0" + long)
    yield "1 bit.bmp", encoded("BMP", picture("1"))
    yield "alpha.bmp", encoded("BMP", picture("RGBA"))
    yield "exif.webp", encoded("WEBP", exif=exif(6))
    yield "lossy alpha.webp", encoded("WEBP", picture("RGBA"))
    yield "animated.webp", encoded("WEBP", save_all=True, append_images=[picture("L").convert("RGB")])
    for mode in ("RGB", "L", "P", "1", "CMYK"):
        yield f"mode {mode}.tif", encoded("TIFF", picture(mode))
    yield "lzw.tif", encoded("TIFF", compression="tiff_lzw")
    yield "plain.ppm", encoded("PPM")
    yield "GIF named.jpg", encoded("GIF")
    yield "animated GIF named.png", encoded("GIF", save_all=True, append_images=[picture("L")])
    yield "AVIF named.jpg", encoded("AVIF")
    yield "JPEG 2000 named.jpg", encoded("JPEG2000")
    yield "TIFF named.jpg", encoded("TIFF")


def _by_nobody() -> Iterator[tuple[str, bytes]]:
    """What Pillow cannot decode."""
    photo, png, webp = jpeg(), encoded("PNG"), encoded("WEBP")
    tables, _ = find(photo, 0xDB)
    frame, _ = find(photo, 0xC0)
    scan, data = find(photo, 0xDA)
    places = {"SOI": 2, "APP0": 9, "tables": tables + 20, "frame": frame + 7, "scan header": scan + 5, "scan": data}
    for name, length in {**places, "a quarter": len(photo) // 4, "the middle": len(photo) // 2}.items():
        yield f"cut in {name}.jpg", photo[:length]
    gradual = jpeg(progressive=True)
    yield "cut in progressive.jpg", gradual[: len(gradual) // 2]
    yield "zeros at the end.jpg", photo[: len(photo) // 2] + bytes(len(photo) - len(photo) // 2)
    yield "empty.jpg", b""
    yield "one byte.jpg", b"\xff"
    yield "text.jpg", b"<html><body>404 not found</body></html>"
    yield "random.jpg", np.random.default_rng(1).bytes(5000)
    yield "zeros.jpg", bytes(5000)
    yield "no frame.jpg", photo[:frame] + photo[scan:]
    yield "no tables.jpg", photo[:tables] + photo[frame:]
    yield "12 bits.jpg", framed(photo, 4, b"\x0c")
    yield "lossless.jpg", framed(photo, 1, b"\xc3")
    yield "no height.jpg", framed(photo, 5, b"\0\0")
    yield "huge.jpg", framed(photo, 5, b"\xff\xdc\xff\xdc")
    yield "second scan.jpg", photo[:-2] + photo[scan:]
    yield "tables in the scan.jpg", photo[: data + 400] + b"\xff\xdb\x00\x01" + photo[data + 400 :]
    yield "cut.png", png[: len(png) // 2]
    yield "header cut.png", png[:20]
    yield "checksum.png", edited(png, 29, b"\0\0\0\0")
    huge = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    yield "huge.png", png[:8] + huge + png[33:]
    yield "damaged data.png", edited(png, 200, bytes(40))
    yield "cut.bmp", encoded("BMP")[:3000]
    yield "cut.webp", webp[: len(webp) // 2]
    yield "cut GIF named.jpg", encoded("GIF")[:700]
    yield "cut.tif", encoded("TIFF", compression="tiff_lzw")[:500]


def _odd_names() -> Iterator[tuple[str, bytes]]:
    yield "spaces and\na line end.jpg", jpeg()
    yield "ünï 像 %s {0}.jpg", jpeg()
    yield os.fsdecode(b"not \xff UTF-8.jpg"), jpeg()
    yield "'quotes\" <b>&.jpg", jpeg()
    yield "l" * 240 + ".jpg", jpeg()


def cases() -> list[Case]:
    """The whole corpus."""
    kinds = ((_by_dali, True, True), (_odd_names, True, True), (_by_torchvision, True, False))
    found = [Case(name, _content(data), *flags) for make, *flags in kinds for name, data in make()]
    found += [Case(name, _content(data), False, False) for name, data in _by_nobody()]
    return found + [Case(name, write, False, False) for name, write in _special()]
