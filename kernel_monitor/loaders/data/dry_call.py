"""A dry run: a call of `__getitem__` with lazy images, which hold only their file until their pixels are needed."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image

from .calls import (
    AFTERWARDS,
    ARRAY,
    AS_FILE,
    BGR,
    COPIES,
    JOINT,
    NEW_TRANSFORM,
    NOT_RGB,
    OPENED_TWICE,
    PIL,
    PIXELS,
    RED_AND_BLUE,
    RGB,
    TENSOR,
    TWICE,
    TWO_IMAGES,
    TWO_TRANSFORMS,
    UNOPENED,
    Call,
    Deviation,
    Opened,
    Opener,
    TransformPoint,
    current,
    image_of,
    name_of,
    result_of,
    with_arguments,
)
from .lazy_array import LazyArray, decoded, name_of_function, with_real
from .lazy_image import ANSWERED, LazyImage, turn_into
from .structure import Place, places, values

# ---- Lazy tensors and arrays, which are decoded at the first operation that needs their pixels.

_ALL, _BACKWARDS = slice(None), slice(None, None, -1)
_REVERSED = ((_ALL, _ALL, _BACKWARDS), (..., _BACKWARDS))
_PLAIN = (slice, type(...))
_PACKAGE = __name__.rpartition(".")[0]


class _DryTensor(torch.Tensor):
    """A lazy tensor from torchvision's decoders; torch's functions get the real tensor in its place."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return with_real(func, args, kwargs or {})

    def _pixels(self, operation: str | None) -> Any:
        return _real(self, operation)


class _DryArray(LazyArray):
    """A lazy array of a dry run."""

    _call: Call
    _opened: Opened
    _colours: str

    def __init__(self, call: Call, opened: Opened, colours: str) -> None:
        call.gave_array = True
        self.__dict__.update(_call=call, _opened=opened, _colours=colours)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self._opened.size, 3)

    ndim = 3
    dtype = np.dtype(np.uint8)

    def copy(self) -> Any:
        return self._then(np.copy)

    def _then(self, step: Callable[[Any], Any], *, reverses: bool = False) -> _DryArray:
        """Return the lazy result of a step that only moves or copies pixels; it may reverse the channels."""
        reverse = BGR if self._colours == RGB else RGB
        return _DryArray(self._call, self._opened.then(step, ARRAY), reverse if reverses else self._colours)

    def __getitem__(self, key: Any) -> Any:
        # Arrays in a key are not compared: the comparison would be another array.
        if isinstance(key, tuple) and all(isinstance(part, _PLAIN) for part in key) and key in _REVERSED:
            return self._then(_reverse, reverses=True)
        return decoded(self, "indexing")[key]

    def _pixels(self, operation: str | None) -> Any:
        return _real(self, operation)


def _real(value: Any, operation: str | None) -> Any:
    """Return the real tensor or array for a lazy one, and fail the dry run if it is under way."""
    own: dict[str, Any] = value.__dict__
    call: Call = own["_call"]
    if call is current():
        fail(call, operation)
    if "_real" not in own:
        own["_real"] = own["_opened"].real()
    return own["_real"]


def _reverse(array: Any) -> Any:
    return array[..., ::-1]


def fail(call: Call, operation: str | None) -> None:
    """Fail the dry run because pixels are needed, for `operation` or for the library function that the data set called.

    If that is one of torchvision's transforms, the data set made it for the call: it was not found in the data set.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torchvision.transforms.transforms" or module.startswith("torchvision.transforms.v2._"):
            call.fail(NEW_TRANSFORM)
        if not module.startswith(("PIL.", "torch", "numpy.", _PACKAGE)):
            break
        if not module.startswith(_PACKAGE):
            operation = f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    call.fail(PIXELS, operation)


# ---- A lazy image, which becomes the image itself at the first operation that needs its pixels.

_AS_ARRAY = ("__array__", "__array_interface__", "__array_struct__", "__array_priority__", "__len__", "__buffer__")


class DryImage(LazyImage):
    """A lazy image of a dry run; if its pixels are asked for then, the dry run fails."""

    answered = ANSWERED | {"_call", "_opened", "_colours"}
    _call: Call
    _opened: Opened
    _colours: str  # the order of its channels: `RGB` or `AS_FILE`

    @staticmethod
    def stays_lazy(call: Call) -> bool:
        return call is current() and call.reason is None

    def asked(self, call: Call, name: str) -> None:
        if call is current():
            fail(call, "as an array" if name in _AS_ARRAY else f".{name}")
        become(self)

    def convert(self, mode: str | None = None, *others: Any, **named: Any) -> Any:
        call = self._call
        if mode != "RGB" or others or named:
            call.fail(NOT_RGB, f".convert({', '.join(map(repr, (mode, *others)))}) comes first")
            return self.convert(mode, *others, **named)  # it has become the image
        return made(call, self._opened, RGB)

    def copy(self) -> Any:
        return made(self._call, self._opened, self._colours)

    @property
    def size(self) -> tuple[int, int]:
        return self._opened.header.size

    @property
    def mode(self) -> str:
        return "RGB" if self._colours == RGB else self._opened.header.mode

    @property
    def format(self) -> str | None:  # type: ignore[override]
        return None if self._colours == RGB else self._opened.header.format

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:  # type: ignore[override]
        return self._opened.header.info

    def getexif(self) -> Image.Exif:
        return self._opened.exif

    @property
    def filename(self) -> str:
        return self._opened.path or ""


def _to_rgb(image: Any) -> Any:
    with image:
        return image.convert("RGB")


def answered(call: Call, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the result of a library's function in a dry run; its arguments may contain a lazy image."""
    image = args[0] if args else None
    if type(image) in _LAZY and call.reason is None:
        made_of = _made_of(call, original, image, args[1:], named)
        if made_of is not None:
            return made_of
    return with_real(original, args, named)


def _made_of(call: Call, original: Callable[..., Any], image: Any, others: tuple[Any, ...], named: Any) -> Any:
    """Return the lazy result of a function of a lazy image, if it only moves or copies pixels; else None."""
    name = original.__name__
    step = with_arguments(original, others, named)
    if original in COPIES and not others and named.keys() <= _COPYING and named.get("dtype") in (None, np.uint8):
        if type(image) is _DryArray:
            return image._then(step)
        if type(image) is DryImage:
            check_colours(image, call)
            if call.reason is None:
                return _DryArray(call, opened_of(image).then(_to_rgb, PIL).then(step, ARRAY), RGB)
    elif type(image) is _DryArray and name == "fromarray" and not others and not named:
        check_colours(image, call)
        if call.reason is None:
            return made(call, opened_of(image).then(step, PIL), RGB)
    elif type(image) is _DryArray and name == "cvtColor":
        if (*others, *named.values()) == (RED_AND_BLUE,) and named.keys() <= {"code"}:
            return image._then(step, reverses=True)
        call.fail(
            NOT_RGB, f"{name_of_function(original)}(…, {', '.join(map(str, (*others, *named.values())))}) comes first"
        )
    return None


_COPYING = {"dtype", "copy", "order"}


def check_colours(image: Any, call: Call) -> None:
    """Fail the dry run if the image for the transform would not be RGB."""
    own = object.__getattribute__(image, "__dict__")
    colours = own["_colours"]
    if colours == BGR:
        call.fail(NOT_RGB, "it is BGR, as OpenCV reads it")
    elif colours == AS_FILE and own["_opened"].header.mode != "RGB":
        call.fail(NOT_RGB, f"it stays {own['_opened'].header.mode}, as its file has it")


_LAZY = (DryImage, _DryTensor, _DryArray)
_NOTHING = torch.empty(0, dtype=torch.uint8)


def made(call: Call, opened: Opened, colours: str) -> Any:
    """Return a lazy image of this dry run."""
    if opened.kind == ARRAY:
        return _DryArray(call, opened, colours)
    is_tensor = opened.kind == TENSOR
    image: Any = torch.Tensor._make_subclass(_DryTensor, _NOTHING) if is_tensor else object.__new__(DryImage)
    object.__getattribute__(image, "__dict__").update(_call=call, _opened=opened, _colours=colours)
    return image


def become(image: DryImage) -> None:
    """Turn a lazy image that has outlived its dry run into the image that was opened."""
    own = object.__getattribute__(image, "__dict__")
    opened = own["_opened"]
    turn_into(image, opened.real().convert("RGB") if own["_colours"] == RGB else opened.real())


def opened_of(image: Any) -> Opened:
    """Return the `Opened` of a lazy image."""
    found: Opened = object.__getattribute__(image, "__dict__")["_opened"]
    return found


def _lazy_image(call: Call, opener: Opener, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return an opener's result in a dry run; None if it cannot be followed with these arguments.

    Raises:
        OSError: the file does not exist.
    """
    opened = opened_by(opener, args, named)
    if opened is None:
        call.fail(PIXELS)
        return None
    colours = opener.colours(args[1:], named)
    if colours is None:
        arguments = ", ".join(["…", *map(str, args[1:]), *(f"{name}={value}" for name, value in named.items())])
        call.fail(PIXELS if opener.kind == PIL else NOT_RGB, f"{opener.function.__name__}({arguments})")
        return None
    return made(call, opened, colours)


def opened_by(opener: Opener, args: tuple[Any, ...], named: dict[str, Any]) -> Opened | None:
    """Return the file that an opener is called for, or its content; None if it is called without one.

    Raises:
        OSError: the file does not exist.
    """
    if not args:
        return None
    file = args[0]
    path: str | None = None
    data: bytes | None = None
    if isinstance(file, str | os.PathLike):
        path = os.fsdecode(file)
    elif opener.kind == PIL:
        path, data = _content(file)
    elif isinstance(file, bytes | bytearray):
        data = bytes(file)
    else:
        data = np.asarray(file).tobytes()  # a tensor or an array of encoded bytes
    if path is not None and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        raise OSError("not a regular file")
    return Opened(opener, args, named, path, data)


def _content(file: Any) -> tuple[str | None, bytes | None]:
    """Return the path of an open file that is still at its beginning, else the content of a file object."""
    name = name_of(file)
    if name is not None and isinstance(file, io.BufferedReader) and file.tell() == 0:
        return name, None
    if isinstance(file, io.BytesIO):
        return None, file.getvalue()
    file.seek(0)
    return None, file.read()


def first_image(sample: Any) -> tuple[Any, list[Place]]:
    """Return a lazy image in a sample, and its places; None if there is none."""
    image = next((value for value in values(sample) if type(value) in _LAZY), None)
    return image, [] if image is None else list(places(sample, image))


# ---- A dry run: a call of `__getitem__` in which no image is decoded and no transform is run.


class DryCall(Call):
    """A call in which images are not decoded, and the transform is not run.

    If the data set does something that a dry run cannot follow, the call goes on as a real one: images are decoded
    after all, so that the user's code works as usual. The result is then not used.

    Attributes:
        image: the lazy image that was opened; later that which the transform got.
        point: the transform that got it; None without a transform.
        opened_any: whether an image was opened.
        placed: the stand-in for the transform's result in the sample; None without a transform.
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
                image = _lazy_image(self, opener, args, named)
            except OSError:
                self.fail(UNOPENED)  # the opener itself raises its own error
            else:
                if image is not None:
                    self.image = image
                    return image
        return opener.function(*args, **named)

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return answered(self, original, args, named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        arguments = (*args, *named.values())
        second_use = TWICE if self.point is not None and point.same(self.point) else TWO_TRANSFORMS
        if self.placed is not None and any(value is self.placed for value in arguments):
            self.fail(second_use)
            raise Deviation
        images = [value for value in arguments if type(value) in _LAZY]
        if images and image_of(point, args, named) is None:
            self.fail(JOINT)
        if images and self.placed is not None:
            self.fail(second_use)
        if images and self.reason is None:
            check_colours(images[0], self)
        if not images or self.reason is not None:
            return point.transform(*map(decoded, args), **{name: decoded(value) for name, value in named.items()})
        self.image, self.point, self.placed = images[0], point, Placed(self)
        return result_of(point, self.placed)


class Placed:
    """A stand-in for the transformed image in a sample. Any use of it ends the dry run."""

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
