"""Opening of images as a data set's own function does it, and decoded images on their way between processes."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from ..plan import mark_plain
from ..transforms.inject import as_kind
from .layouts import Opener, open_as_stored, open_gray

# ---- Functions that open an image from its file, or from the file's content.

MODES = {open_as_stored: "in the file's own mode", open_gray: "in grey"}
"""Openers whose images are not RGB."""


class _Named(io.BytesIO):
    """Encoded bytes with a name, which Pillow's messages contain in place of an address."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self._name = name

    def __repr__(self) -> str:
        return self._name


def open_file(opener: Opener, path: str, name: str) -> Any:
    """Return the image in a file.

    Args:
        opener: the data set's opening function.
        path: the file's path.
        name: the file's name in messages.

    Raises:
        OSError: it is no regular file, or no readable image.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        # Opening a named pipe would block until there is a writer.
        raise OSError(f"not a regular file: {name}")
    return opener(path)


def open_data(data: bytes, name: str) -> Any:
    """Return the RGB image of encoded bytes that a data set gives."""
    with Image.open(_Named(data, name)) as image:
        return image.convert("RGB")


def open_content(opener: Opener, content: bytes, path: str) -> Any:
    """Return the image of a file's content, equal to that of `open_file`; for torchvision's openers and `MODES`."""
    if opener not in MODES:
        return open_data(content, f"<_io.BufferedReader name={path!r}>")
    image: Any = opener(_Named(content, repr(path)))
    image.filename = path
    return image


def data_of(content: Any) -> bytes | None:
    """Return the bytes if a data set gave a file's content; else None."""
    return bytes(content) if isinstance(content, bytes | bytearray | memoryview) else None


def path_of(path: Any) -> str:
    """Return the path that a data set gave; raise a TypeError if it gave something else."""
    if not isinstance(path, str | os.PathLike):
        error = TypeError(f"a data set gave {type(path).__name__} for an image file; it must give a path or bytes")
        mark_plain(error)  # an error of the user's code, not of ours
        raise error
    return os.fsdecode(path)


# ---- Images on their way from the process that decodes them to the worker that transforms them further.


class Decoded:
    """Some rows of a batch as 8-bit RGB images, in one piece of shared memory.

    Args:
        rest: position in the flat chain of the first transform that is still to run.
        kind: the kind of image that the transform at `rest` expects; see `Program.rest_kind`.
        rows: rows of the planned batch with an image; workers open the images of the other rows.
        images: uint8[height, width, 3] for each of `rows`; copied.
    """

    def __init__(self, rest: int, kind: str, rows: Sequence[int], images: Sequence[torch.Tensor]) -> None:
        self.rest = rest
        self._kind = kind
        self._places: dict[int, tuple[int, torch.Size]] = {}
        length = 0
        for row, image in zip(rows, images, strict=True):
            self._places[row] = length, image.shape
            length += image.numel()
        # Shared memory from the start: else the queue would copy it into shared memory once more.
        storage = torch.UntypedStorage._new_shared(max(1, length))
        self._pixels = torch.empty(0, dtype=torch.uint8).set_(storage)
        for image, (first, shape) in zip(images, self._places.values(), strict=True):
            self._pixels[first : first + shape.numel()].view(shape).copy_(image)

    def start(self, row: int) -> int:
        """Return the position in the flat chain of the first transform to run on the image of a row."""
        return self.rest if row in self._places else 0

    def image(self, row: int) -> Any:
        """Return a copy of a row's image, in the kind that the next transform expects; None if it has none."""
        if row not in self._places:
            return None
        first, shape = self._places[row]
        return as_kind(self._kind, self._pixels[first : first + shape.numel()].view(shape).clone())
