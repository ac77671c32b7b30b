"""One call of a data set's own `__getitem__`: what openers and transforms do meanwhile, on the calling thread only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

NO_IMAGE = "opens no image file"
TWO_IMAGES = "opens more than one image"
OPENED_TWICE = "opens its file twice"
UNOPENED = "could not be opened"
NOT_RGB = "is not made RGB"
PIXELS = "works on the pixels itself"
TWO_TRANSFORMS = "uses more than one transform"
NEW_TRANSFORM = "makes its transform anew for each sample"
DIFFERENT = "uses different transforms"
JOINT = "transforms image and target together"
AFTERWARDS = "changes the image after the transform"
NOT_FOUND = "the image is not found in what it returns"
KEEPS = "keeps the image"

_local = threading.local()


class Deviation(BaseException):
    """Ends a dry run; not an Exception, which people's own retry loops would catch."""


class TransformPoint:
    """Stands in for a transform of the data set while we call that; elsewhere it is that transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, *args: Any, **named: Any) -> Any:
        call = current()
        return self.transform(*args, **named) if call is None else call.transformed(self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name == "transform":  # while it is being unpickled or copied
            raise AttributeError(name)
        return getattr(self.transform, name)

    def __bool__(self) -> bool:
        return bool(self.transform)

    def same(self, other: TransformPoint) -> bool:
        """Whether it stands for the same transform."""
        return self.transform is other.transform


class Call:
    """A call of `__getitem__` under way on this thread; a context manager.

    Attributes:
        path: of the image file opened last; None where none was, or one without a name.
        reason: why it cannot be followed by a dry run, as the end of "The data set …"; None where it can.
    """

    path: str | None = None
    reason: str | None = None
    _before: Call | None = None

    def __enter__(self) -> Call:
        self._before = current()
        _local.call = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.call = self._before

    def fail(self, reason: str) -> None:
        """Note why it cannot be followed. The first reason counts."""
        self.reason = self.reason or reason

    def opened(self, original: Callable[..., Any], kind: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What an opener of images returns."""
        raise NotImplementedError

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a transform of the data set returns."""
        raise NotImplementedError


class RealCall(Call):
    """Images are decoded, and transformed once by `transform`.

    Args:
        point: whose calls `transform` replaces; None: no transform is replaced.
        transform: takes and returns an image. The second image of a sample, if there is one, is given to the user's
            own transform: it must not get the same random numbers again.

    Attributes:
        opened_any: whether an image was opened.
    """

    def __init__(self, point: TransformPoint | None, transform: Callable[[Any], Any] | None) -> None:
        self._point = point
        self._transform = transform
        self.opened_any = False

    def opened(self, original: Callable[..., Any], _kind: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.opened_any = True
        self.path = name_of(args[0]) if args else None
        return original(*args, **named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        transform = self._transform
        if transform is None or self._point is None or not point.same(self._point) or len(args) != 1 or named:
            return point.transform(*args, **named)
        self._transform = None
        return transform(args[0])


def current() -> Call | None:
    """The call under way on this thread."""
    call: Call | None = getattr(_local, "call", None)
    return call


def name_of(given: Any) -> str | None:
    """The path of what an opener was given: itself, or that of an open file; None where it has none."""
    if isinstance(given, str | os.PathLike):
        return os.fsdecode(given)
    name = getattr(given, "name", None)
    return name if isinstance(name, str) else None
