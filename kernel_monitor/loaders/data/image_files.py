"""Opening of images as a data set's own function does it, and decoded images on their way between processes."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torchvision import tv_tensors

from ..plan import mark_plain
from ..transforms.inject import as_kind
from .layouts import Opener, open_as_stored, open_gray

# ---- Functions that open an image from its file, or from the file's content.

MODES = (open_as_stored, open_gray)
"""Openers whose images need not be RGB."""


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
    _check_regular(path, name)
    return opener(path)


def _check_regular(path: str, name: str) -> None:
    """Raise an `OSError` for other files: opening a named pipe would block until there is a writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        raise OSError(f"not a regular file: {name}")


def read_file(path: str) -> bytes:
    """Return a file's content; an `OSError` if it is no regular file, or cannot be read."""
    _check_regular(path, path)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - once per sample
        return file.read()


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

_ALIGNED = 16  # bytes, at multiples of which images begin


class Start(NamedTuple):
    """What is still to be done with an image that DALI has made."""

    position: int  # of the first transform that is still to run, in the flat chain; `DONE`: none is
    kind: str  # of the image that it expects, see `Program.rest_kind`; ignored where none is to run


DONE = sys.maxsize


class _Place(NamedTuple):
    """The place of an image in shared memory."""

    start: Start
    first: int  # byte
    length: int  # bytes
    dtype: torch.dtype
    shape: torch.Size
    is_image: bool  # whether it is one of torchvision's `tv_tensors.Image`


class Decoded:
    """The images of some rows of a batch, in one piece of shared memory.

    Args:
        rows: rows of the planned batch with an image; workers open the images of the other rows.
        starts: for each of `rows`, what is still to be done with its image.
        images: for each of `rows`, an 8-bit RGB image, uint8[height, width, 3], or where nothing is to be done the
            transform's result; copied.
    """

    def __init__(self, rows: Sequence[int], starts: Sequence[Start], images: Sequence[torch.Tensor]) -> None:
        self._places: dict[int, _Place] = {}
        length = 0
        for row, start, image in zip(rows, starts, images, strict=True):
            is_image = isinstance(image, tv_tensors.Image)
            self._places[row] = _Place(start, length, image.nbytes, image.dtype, image.shape, is_image)
            length += -(-image.nbytes // _ALIGNED) * _ALIGNED
        # Shared memory from the start: else the queue would copy it into shared memory once more.
        storage = torch.UntypedStorage._new_shared(max(1, length))
        self._memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        for row, image in zip(rows, images, strict=True):
            self._view(self._places[row]).copy_(image)

    def _view(self, place: _Place) -> torch.Tensor:
        whole = self._memory[place.first : place.first + place.length]
        return whole.view(place.dtype).view(place.shape)

    def start(self, row: int) -> int:
        """Return the position in the flat chain of the first transform to run on the image of a row."""
        return self._places[row].start.position if row in self._places else 0

    def image(self, row: int) -> Any:
        """Return a copy of a row's image, in the kind that the next transform expects; None if it has none."""
        place = self._places.get(row)
        if place is None:
            return None
        copy = self._view(place).clone()
        if place.start.position == DONE:
            return tv_tensors.Image(copy) if place.is_image else copy
        return as_kind(place.start.kind, copy)
