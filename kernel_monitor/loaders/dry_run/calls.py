"""One call of a data set's own `__getitem__`: what openers and transforms do meanwhile, on the calling thread only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lazy_image import LazyImage
    from .point import TransformPoint

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


class Call:
    """A call of `__getitem__` under way on this thread; a context manager.

    Attributes:
        path: of the image file opened last; None where none was, or one without a name.
    """

    path: str | None = None
    _before: Call | None = None

    def __enter__(self) -> Call:
        self._before = current()
        _local.call = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.call = self._before

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


class DryCall(Call):
    """Images are not decoded, and the transform is not run.

    Where the data set does something that a dry run cannot follow, the call goes on as a real one: images are decoded
    after all, so that the user's code meets nothing unusual. Its result is then of no use.

    Attributes:
        image: the one that was opened, or what became of it: the one that the transform was given.
        point: the transform that was given it; None where there is no transform.
        opened_any: whether an image was opened.
        placed: what stands in the sample for the result; None where there is no transform.
        reason: why the call cannot be followed, as the end of "The data set …"; None where it can.
    """

    def __init__(self) -> None:
        self.image: LazyImage | None = None
        self.point: TransformPoint | None = None
        self.placed: Placed | None = None
        self.reason: str | None = None
        self.opened_any = False

    def fail(self, reason: str) -> None:
        """Go on as a real call. The first reason counts."""
        self.reason = self.reason or reason

    def opened(self, original: Callable[..., Any], kind: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from .lazy_image import lazy_image

        path = name_of(args[0]) if args else None
        if self.opened_any:
            self.fail(OPENED_TWICE if path is not None and path == self.path else TWO_IMAGES)
        self.opened_any, self.path = True, path
        if self.reason is None:
            try:
                image = lazy_image(self, original, kind, args, named)
            except OSError:
                self.fail(UNOPENED)  # its own error comes from the opener itself
            else:
                if image is not None:
                    self.image = image
                    return image
        return original(*args, **named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from .lazy_image import LazyImage

        given = (*args, *named.values())
        if self.placed is not None and any(value is self.placed for value in given):
            self.fail(TWO_TRANSFORMS)
            raise Deviation
        images = [value for value in given if type(value) is LazyImage]
        if images and (len(args) != 1 or named):
            self.fail(JOINT)
        if images and self.placed is not None:
            self.fail(TWO_TRANSFORMS)
        if images and self.reason is None:
            images[0].check_colours(self)
        if not images or self.reason is not None:
            return point.transform(*args, **named)
        self.image, self.point, self.placed = images[0], point, Placed(self)
        return self.placed


class Placed:
    """Stands in a sample where the transformed image will stand. Any use of it ends the dry run."""

    def __init__(self, call: DryCall) -> None:
        object.__setattr__(self, "_call", call)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Placed
        return object.__getattribute__(self, "_use")()

    def _use(self, *_: object, **__: object) -> Any:
        object.__getattribute__(self, "_call").fail(AFTERWARDS)
        raise Deviation

    def _dunder(self, *_: object) -> Any:
        return object.__getattribute__(self, "_use")()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _dunder
    __getitem__ = __len__ = __iter__ = __float__ = __int__ = __neg__ = __bool__ = __setattr__ = _dunder
    __lt__ = __gt__ = __le__ = __ge__ = __pow__ = __abs__ = _dunder


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
