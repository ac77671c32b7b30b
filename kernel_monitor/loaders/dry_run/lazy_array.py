"""Tensors and arrays that are not decoded: they know their file, and are decoded as soon as anything is asked of them.

See `lazy_image`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch

from .calls import NEW_TRANSFORM, PIXELS, Call, current
from .opened import Opened
from .openers import ARRAY, BGR, RGB

ORIENTATION = 0x0112  # tag of EXIF
_ON_ITS_SIDE = (5, 6, 7, 8)  # orientations that exchange width and height
_ALL, _BACKWARDS = slice(None), slice(None, None, -1)
_REVERSED = ((_ALL, _ALL, _BACKWARDS), (..., _BACKWARDS))
_PLAIN = (slice, type(...))
_PACKAGE = __name__.rpartition(".")[0]


class LazyTensor(torch.Tensor):
    """The same for what torchvision's decoders give: whatever torch is to do with it is done with the real tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(decoded, args), **{name: decoded(value) for name, value in (kwargs or {}).items()})


class LazyArray:
    """The same for what OpenCV gives, and for an array of a lazy image.

    No `np.ndarray`, whose memory functions written in C would read; it says that it is one, and becomes one for all
    that asks it (NumPy, and OpenCV where `libraries` stands for it).
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, call: Call, opened: Opened, colours: str) -> None:
        call.gave_array = True
        self.__dict__.update(_call=call, _opened=opened, _colours=colours)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        own = self.__dict__
        width, height = own["_opened"].header.size
        turned = own["_opened"].turned and own["_opened"].header.exif.get(ORIENTATION, 1) in _ON_ITS_SIDE
        return (width, height, 3) if turned else (height, width, 3)

    ndim = 3
    dtype = np.dtype(np.uint8)

    def copy(self) -> Any:
        return then(self, np.copy)

    def __getitem__(self, key: Any) -> Any:
        # Compared only where it is no array, whose comparison is another array.
        if isinstance(key, tuple) and all(isinstance(one, _PLAIN) for one in key) and key in _REVERSED:
            return then(self, _reverse, reverses=True)
        return decoded(self)[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(decoded(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(decoded(self), name, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(decoded(self), dtype=dtype, copy=copy)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*map(decoded, args), **{name: decoded(value) for name, value in kwargs.items()})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        return getattr(ufunc, method)(*map(decoded, args), **{name: decoded(value) for name, value in named.items()})


def _delegate(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(decoded(self), name)(*map(decoded, args))


for _name in (
    *("setitem", "len", "iter", "contains", "bool", "float", "int", "index", "neg", "pos", "abs", "invert", "repr"),
    *("eq", "ne", "lt", "le", "gt", "ge", "str", "format", "copy", "deepcopy", "reduce", "reduce_ex"),
    *(
        prefix + operator
        for prefix in ("", "r", "i")
        for operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
    ),
):
    setattr(LazyArray, f"__{_name}__", _delegate(f"__{_name}__"))


def _reverse(array: Any) -> Any:
    return array[..., ::-1]


def then(array: LazyArray, step: Callable[[Any], Any], *, reverses: bool = False) -> LazyArray:
    """What a function makes of an array, which only moves or copies pixels; it may reverse the colours."""
    own = array.__dict__
    colours = own["_colours"]
    if reverses:
        colours = BGR if colours == RGB else RGB
    return LazyArray(own["_call"], own["_opened"].then(step, ARRAY), colours)


def decoded(value: Any) -> Any:
    """The real tensor or array in the place of a lazy one; in lists and tuples, too."""
    if type(value) in (list, tuple):
        return type(value)(map(decoded, value))
    if type(value) not in (LazyTensor, LazyArray):
        return value
    own: dict[str, Any] = value.__dict__
    call: Call = own["_call"]
    if call is current():
        call.fail(NEW_TRANSFORM if in_transform() else PIXELS)
    if "_real" not in own:
        own["_real"] = own["_opened"].real()
    return own["_real"]


def in_transform() -> bool:
    """Whether one of torchvision's transforms looks at the image: one that was not found in the data set."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torchvision.transforms.transforms" or module.startswith("torchvision.transforms.v2._"):
            return True
        frame = frame.f_back if module.startswith(("PIL.", "torch", "numpy.", _PACKAGE)) else None
    return False
