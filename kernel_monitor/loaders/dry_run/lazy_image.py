"""An image that is not decoded: it knows its file, and becomes the image itself as soon as anything else is asked.

In a dry run that is the reason why it cannot be followed. Afterwards it is what keeps other code from ever meeting
a stand-in, should the data set have kept one.
"""

from __future__ import annotations

import functools
import io
import os
import stat
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from .calls import NOT_RGB, PIXELS, Call, current, name_of
from .lazy_array import LazyArray, LazyTensor, fail, name_of_function, then, with_real
from .libraries import COPIES
from .opened import Opened
from .openers import ARRAY, AS_FILE, BGR, PIL, RGB, TENSOR, Opener
from .structure import Place, places, values

_ANSWERED = frozenset(
    {"__class__", "__dict__", "__enter__", "__exit__", "close", "convert", "copy", "load"}
    | {"size", "width", "height", "mode", "format", "filename", "info", "getexif"}
)
"""What a dry run answers; all else needs the pixels, or might."""
_AS_ARRAY = ("__array__", "__array_interface__", "__array_struct__", "__array_priority__", "__len__", "__buffer__")


class LazyImage(Image.Image):
    """See the module's text. An `Image.Image`, so that code that asks for one is content."""

    _opened: Opened
    _call: Call
    _colours: str  # see `openers`

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        call: Call | None = own.get("_call")
        under_way = call is not None and call is current()
        if name in ("__class__", "__dict__") or (under_way and name in _ANSWERED and call.reason is None):  # type: ignore[union-attr]
            return object.__getattribute__(self, name)
        if call is not None and under_way:
            fail(call, "as an array" if name in _AS_ARRAY else f".{name}")
        become(self)
        return getattr(self, name)

    def __enter__(self) -> LazyImage:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    def load(self) -> None:
        """Nothing is decoded."""

    def convert(self, mode: str | None = None, *others: Any, **named: Any) -> Any:
        call = self.__dict__["_call"]
        if mode != "RGB" or others or named:
            call.fail(NOT_RGB, f".convert({', '.join(map(repr, (mode, *others)))}) comes first")
            return self.convert(mode, *others, **named)  # it has become the image
        return made(call, self.__dict__["_opened"], RGB)

    def copy(self) -> Any:
        return made(self.__dict__["_call"], self.__dict__["_opened"], self.__dict__["_colours"])

    @property
    def size(self) -> tuple[int, int]:
        return self.__dict__["_opened"].header.size  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        return self.size[0]

    @property
    def height(self) -> int:
        return self.size[1]

    @property
    def mode(self) -> str:
        return "RGB" if self.__dict__["_colours"] == RGB else self.__dict__["_opened"].header.mode

    @property
    def format(self) -> str | None:  # type: ignore[override]
        return None if self.__dict__["_colours"] == RGB else self.__dict__["_opened"].header.format

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:  # type: ignore[override]
        return self.__dict__["_opened"].header.info  # type: ignore[no-any-return]

    def getexif(self) -> Image.Exif:
        return self.__dict__["_opened"].header.exif  # type: ignore[no-any-return]

    @property
    def filename(self) -> str:
        return self.__dict__["_opened"].path or ""


def _to_rgb(image: Any) -> Any:
    with image:
        return image.convert("RGB")


def answered(call: Call, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a function of a library gives in a dry run that may have been given a lazy image."""
    image = args[0] if args else None
    if type(image) in LAZY and call.reason is None:
        made_of = _made_of(call, original, image, args[1:], named)
        if made_of is not None:
            return made_of
    return with_real(original, args, named)


def _made_of(call: Call, original: Callable[..., Any], image: Any, others: tuple[Any, ...], named: Any) -> Any:
    """What a function makes of a lazy image, if it only moves or copies pixels; None where it does anything else."""
    name = original.__name__
    step = functools.partial(_first, original, others, named)
    if original in COPIES and not others and named.keys() <= _COPYING and named.get("dtype") in (None, np.uint8):
        if type(image) is LazyArray:
            return then(image, step)
        if type(image) is LazyImage:
            check_colours(image, call)
            if call.reason is None:
                return LazyArray(call, opened_of(image).then(_to_rgb, PIL).then(step, ARRAY), RGB)
    elif type(image) is LazyArray and name == "fromarray" and not others and not named:
        check_colours(image, call)
        if call.reason is None:
            return made(call, opened_of(image).then(step, PIL), RGB)
    elif type(image) is LazyArray and name == "cvtColor":
        if (*others, *named.values()) == _EXCHANGE and named.keys() <= {"code"}:
            return then(image, step, reverses=True)
        call.fail(
            NOT_RGB, f"{name_of_function(original)}(…, {', '.join(map(str, (*others, *named.values())))}) comes first"
        )
    return None


_COPYING = {"dtype", "copy", "order"}
_EXCHANGE = (4,)  # cv2.COLOR_BGR2RGB, which is COLOR_RGB2BGR


def _first(function: Callable[..., Any], others: tuple[Any, ...], named: dict[str, Any], first: Any) -> Any:
    return function(first, *others, **named)


def check_colours(image: Any, call: Call) -> None:
    """End the dry run where what is given to the transform would not be RGB."""
    own = object.__getattribute__(image, "__dict__")
    colours = own["_colours"]
    if colours == BGR:
        call.fail(NOT_RGB, "it is BGR, as OpenCV reads it")
    elif colours == AS_FILE and own["_opened"].header.mode != "RGB":
        call.fail(NOT_RGB, f"it stays {own['_opened'].header.mode}, as its file has it")


LAZY = (LazyImage, LazyTensor, LazyArray)
_NOTHING = torch.empty(0, dtype=torch.uint8)


def made(call: Call, opened: Opened, colours: str) -> Any:
    """A lazy image of this dry run."""
    if opened.kind == ARRAY:
        return LazyArray(call, opened, colours)
    is_tensor = opened.kind == TENSOR
    image: Any = torch.Tensor._make_subclass(LazyTensor, _NOTHING) if is_tensor else object.__new__(LazyImage)
    object.__getattribute__(image, "__dict__").update(_call=call, _opened=opened, _colours=colours)
    return image


def become(image: LazyImage) -> None:
    """Turn a lazy image that has outlived its dry run into the image that was opened."""
    own = object.__getattribute__(image, "__dict__")
    opened, colours = own["_opened"], own["_colours"]
    real = opened.real().convert("RGB") if colours == RGB else opened.real()
    real.load()  # what is not loaded closes its file when it is gone
    own.clear()
    own.update(real.__dict__)
    object.__setattr__(image, "__class__", type(real))


def opened_of(image: Any) -> Opened:
    """What a lazy image was opened from."""
    found: Opened = object.__getattribute__(image, "__dict__")["_opened"]
    return found


def lazy_image(call: Call, opener: Opener, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What an opener returns in a dry run; None where it was called in a way that cannot be followed.

    Raises:
        OSError: the file is not there.
    """
    if not args:
        call.fail(PIXELS)
        return None
    given = args[0]
    path: str | None = None
    data: bytes | None = None
    if isinstance(given, str | os.PathLike):
        path = os.fsdecode(given)
    elif opener.kind == PIL:
        path, data = _content(given)
    elif isinstance(given, bytes | bytearray):
        data = bytes(given)
    else:
        data = np.asarray(given).tobytes()  # a tensor or an array of encoded bytes
    if path is not None and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        raise OSError("not a regular file")
    colours = opener.colours(args[1:], named)
    if colours is None:
        given = ", ".join(["…", *map(str, args[1:]), *(f"{name}={value}" for name, value in named.items())])
        call.fail(PIXELS if opener.kind == PIL else NOT_RGB, f"{opener.function.__name__}({given})")
        return None
    return made(call, Opened(opener, args, named, path, data), colours)


def _content(file: Any) -> tuple[str | None, bytes | None]:
    """The path of an open file that nothing was read of, else the content of a file object."""
    name = name_of(file)
    if name is not None and isinstance(file, io.BufferedReader) and file.tell() == 0:
        return name, None
    if isinstance(file, io.BytesIO):
        return None, file.getvalue()
    file.seek(0)
    return None, file.read()


def first_image(sample: Any) -> tuple[Any, list[Place]]:
    """An image in a sample that was not decoded, and its places."""
    image = next((value for value in values(sample) if type(value) in LAZY), None)
    return image, [] if image is None else list(places(sample, image))
