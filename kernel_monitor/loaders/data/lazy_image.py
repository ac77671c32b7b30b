"""Lazy images: images of Pillow that answer from their file's header, and are decoded where their pixels are needed."""

from __future__ import annotations

from typing import Any, ClassVar

from PIL import Image

from .calls import Call, current

ANSWERED = frozenset(
    {"__enter__", "__exit__", "close", "load", "copy", "convert"}
    | {"size", "width", "height", "mode", "format", "filename", "info", "getexif"}
)
"""Attributes that need no pixels."""


class LazyImage(Image.Image):
    """A lazy image. It is an `Image.Image`, for code that checks the class.

    Its `__dict__` has the call of `__getitem__` in which it was opened. Any attribute that needs pixels, or might, and
    any attribute after the call, turns it into the real image, which has the attribute.
    """

    answered: ClassVar[frozenset[str]] = ANSWERED

    def __getattribute__(self, name: str) -> Any:
        kind, own = type(self), object.__getattribute__(self, "__dict__")
        call: Call | None = own.get("_call")  # None while another thread turns it into the real image
        if name in ("__class__", "__dict__") or (call is not None and name in kind.answered and kind.stays_lazy(call)):
            return object.__getattribute__(self, name)
        if call is not None:
            kind.asked(self, call, name)
        return getattr(self, name)

    @staticmethod
    def stays_lazy(call: Call) -> bool:
        """Return whether images of a call stay lazy: while it is under way."""
        return call is current()

    def asked(self, call: Call, name: str) -> None:
        """Turn the image into the real one, as the caller of `__getattribute__` asks for an attribute of this name."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""

    def close(self) -> None:
        """Do nothing: no file is open."""

    def load(self) -> None:
        """Do nothing: the image is decoded when its pixels are needed."""

    @property
    def width(self) -> int:
        return self.size[0]

    @property
    def height(self) -> int:
        return self.size[1]


def turn_into(image: LazyImage, real: Image.Image) -> None:
    """Turn a lazy image into a real one."""
    real.load()  # otherwise the file would be closed when `real` is collected
    own = object.__getattribute__(image, "__dict__")
    own.clear()
    own.update(real.__dict__)
    object.__setattr__(image, "__class__", type(real))
