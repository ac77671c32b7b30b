"""A dry run: a call of `__getitem__` in which no image is decoded and no transform is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calls import (
    AFTERWARDS,
    JOINT,
    OPENED_TWICE,
    TWICE,
    TWO_IMAGES,
    TWO_TRANSFORMS,
    UNOPENED,
    Call,
    Deviation,
    TransformPoint,
    image_of,
    name_of,
    result_of,
)
from .lazy_array import decoded
from .lazy_image import LAZY, answered, check_colours, lazy_image
from .openers import Opener


class DryCall(Call):
    """Images are not decoded, and the transform is not run.

    Where the data set does something that a dry run cannot follow, the call goes on as a real one: images are decoded
    after all, so that the user's code meets nothing unusual. Its result is then of no use.

    Attributes:
        image: the one that was opened, or what became of it: the one that the transform was given.
        point: the transform that was given it; None where there is no transform.
        opened_any: whether an image was opened.
        placed: what stands in the sample for the result; None where there is no transform.
    """

    def __init__(self) -> None:
        self.image: Any = None
        self.point: TransformPoint | None = None
        self.placed: Placed | None = None
        self.opened_any = False

    def opened(self, opener: Opener, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        path = name_of(args[0]) if args else None
        if self.opened_any:
            self.fail(OPENED_TWICE if path is not None and path == self.path else TWO_IMAGES)
        self.opened_any, self.path = True, path
        if self.reason is None:
            try:
                image = lazy_image(self, opener, args, named)
            except OSError:
                self.fail(UNOPENED)  # its own error comes from the opener itself
            else:
                if image is not None:
                    self.image = image
                    return image
        return opener.function(*args, **named)

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return answered(self, original, args, named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = (*args, *named.values())
        again = TWICE if self.point is not None and point.same(self.point) else TWO_TRANSFORMS
        if self.placed is not None and any(value is self.placed for value in given):
            self.fail(again)
            raise Deviation
        images = [value for value in given if type(value) in LAZY]
        if images and image_of(point, args, named) is None:
            self.fail(JOINT)
        if images and self.placed is not None:
            self.fail(again)
        if images and self.reason is None:
            check_colours(images[0], self)
        if not images or self.reason is not None:
            return point.transform(*map(decoded, args), **{name: decoded(value) for name, value in named.items()})
        self.image, self.point, self.placed = images[0], point, Placed(self)
        return result_of(point, self.placed)


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
