"""One call of a data set's own `__getitem__`: what openers and transforms do meanwhile, on the calling thread only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ...text import line
from ..transforms.image_by_name import NAME, takes_name

NO_IMAGE = "opens no image file by a function that is known"
IN_MEMORY = "takes its samples decoded from memory, so that a switch would bring nothing"
TWO_IMAGES = "opens more than one image"
OPENED_TWICE = "opens its file twice"
UNOPENED = "could not be opened"
NOT_RGB = "is not made RGB"
PIXELS = "works on the pixels itself"
TWO_TRANSFORMS = "uses more than one transform"
TWICE = "calls its transform twice for a sample"
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
        gave_array: whether it gave an array that was not decoded, which functions written in C do not take.
    """

    path: str | None = None
    reason: str | None = None
    gave_array = False
    _before: Call | None = None

    def __enter__(self) -> Call:
        self._before = current()
        _local.call = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.call = self._before

    def fail(self, reason: str, detail: str | None = None) -> None:
        """Note why it cannot be followed, with what the data set did, if that is known. The first reason counts."""
        self.reason = self.reason or (reason if detail is None else f"{reason} ({line(detail)})")

    def opened(self, opener: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What an opener of images (`openers.Opener`) returns."""
        raise NotImplementedError

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a function of a library returns that may be given an image."""
        return original(*args, **named)

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

    def opened(self, opener: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.opened_any = True
        self.path = name_of(args[0]) if args else None
        return opener.function(*args, **named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        transform = self._transform
        image = image_of(point, args, named)
        if transform is None or self._point is None or not point.same(self._point) or image is None:
            return point.transform(*args, **named)
        self._transform = None
        return result_of(point, transform(image))


def image_of(point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The image that a transform is given, by itself or by its name; None where it is given anything else."""
    if takes_name(point.transform):
        return named[NAME] if not args and named.keys() == {NAME} else None
    return args[0] if len(args) == 1 and not named else None


def result_of(point: TransformPoint, image: Any) -> Any:
    """What a transform returns whose result is this image."""
    return {NAME: image} if takes_name(point.transform) else image


def plainly(reason: str | None) -> str | None:
    """One of the reasons of this module, without what the data set did."""
    return None if reason is None else reason.partition(" (")[0]


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
