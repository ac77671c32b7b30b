"""What a data set opened: a file or its content, and what its code then made of it without a look at its pixels."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from .openers import PIL, Opener, of_content, original_open


class Header(NamedTuple):
    """What Pillow knows of an image that it has opened and not decoded."""

    size: tuple[int, int]
    mode: str
    format: str | None
    info: dict[str | tuple[int, int], Any]
    exif: Image.Exif


class Opened:
    """What was opened, a file or its content, and what was then made of it without a look at its pixels.

    Args:
        opener: that opened it.
        args: what it was called with.
        named: the same, by name.
        path: of the file; None where there is only content.
        data: the content, where there is no path.

    Attributes:
        kind: of image that it is now, see `openers`.
        turned: whether its EXIF orientation is followed.
    """

    def __init__(
        self, opener: Opener, args: tuple[Any, ...], named: dict[str, Any], path: str | None, data: bytes | None
    ) -> None:
        self.kind = opener.kind
        self.turned = opener.turns(args[1:], named)
        self.path = path
        self.data = data
        self._opener = opener
        self._args = args
        self._named = named
        self._steps: tuple[Callable[[Any], Any], ...] = ()
        self._header: Header | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what it was called with, which may be an open file."""
        return {**self.__dict__, "_args": (None, *self._args[1:]), "_header": None}

    def _copy(self) -> Opened:
        made = object.__new__(Opened)
        made.__dict__.update(self.__dict__)
        return made

    def with_content(self, content: bytes) -> Opened:
        """The same with the content of its file in place of the file."""
        made = self._copy()
        made.data = content
        if self._opener.kind != PIL:
            made._opener, made._args = of_content(self._opener, self._args, self._named, content)
        return made

    @property
    def header(self) -> Header:
        """What the file says of the image, read when it is first asked for."""
        if self._header is None:
            given: Any = self.path if self.data is None else io.BytesIO(self.data)
            with original_open(given) as image:
                self._header = Header(image.size, image.mode, image.format, image.info, image.getexif())
        return self._header

    def then(self, step: Callable[[Any], Any], kind: str) -> Opened:
        """What a function makes of it, which only moves or copies pixels."""
        made = self._copy()
        made.kind, made._steps = kind, (*self._steps, step)
        return made

    def real(self) -> Any:
        """The image."""
        given = self._args[0]
        if self._opener.kind == PIL:
            given = self.path if self.data is None else io.BytesIO(self.data)
        image = self._opener.function(given, *self._args[1:], **self._named)
        for step in self._steps:
            image = step(image)
        return image


def as_opened(opened: Opened) -> Any:
    """The image that the transform is given, decoded."""
    if opened.kind != PIL:
        return opened.real()
    with opened.real() as image:
        return image.convert("RGB")
