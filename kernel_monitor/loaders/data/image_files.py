"""Opens an image as a data set's own opening function does: from its file, or from the file's content."""

from __future__ import annotations

import io
import os
import stat
from typing import Any

from PIL import Image

from ..plan import mark_plain
from .layouts import Opener, open_as_stored, open_gray

MODES = {open_as_stored: "in the file's own mode", open_gray: "in grey"}
"""Openers whose images are not RGB."""


class _Named(io.BytesIO):
    """Encoded bytes whose name appears in Pillow's messages in place of an address."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self._name = name

    def __repr__(self) -> str:
        return self._name


def open_file(opener: Opener, path: str, name: str) -> Any:
    """The image in a file; an `OSError` if it is no regular file, or no readable image. `name` is for messages."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        # Opening a named pipe would wait for ever for a writer.
        raise OSError(f"not a regular file: {name}")
    return opener(path)


def open_data(data: bytes, name: str) -> Any:
    """The image, RGB, of content that a data set gives."""
    with Image.open(_Named(data, name)) as image:
        return image.convert("RGB")


def open_content(opener: Opener, content: bytes, path: str) -> Any:
    """The image of a file's content, as `open_file` gives that of the file, for torchvision's openers and `MODES`."""
    if opener not in MODES:
        return open_data(content, f"<_io.BufferedReader name={path!r}>")
    image: Any = opener(_Named(content, repr(path)))
    image.filename = path
    return image


def data_of(given: Any) -> bytes | None:
    """The content of a file, if a data set gave that."""
    return bytes(given) if isinstance(given, bytes | bytearray | memoryview) else None


def path_of(given: Any) -> str:
    """The path that a data set gave; TypeError if it gave none."""
    if not isinstance(given, str | os.PathLike):
        error = TypeError(f"a data set gave {type(given).__name__} for an image file; it must give a path or bytes")
        mark_plain(error)  # of the user's, not a fault of ours
        raise error
    return os.fsdecode(given)
