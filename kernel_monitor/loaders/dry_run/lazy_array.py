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
        return with_real(func, args, kwargs or {})


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
        return decoded(self, "indexing")[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(decoded(self, f".{name}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(decoded(self, f".{name}"), name, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(decoded(self, "as an array"), dtype=dtype, copy=copy)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return with_real(func, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        return with_real(getattr(ufunc, method), args, named, name_of_function(ufunc))


def _delegate(name: str) -> Callable[..., Any]:
    return lambda self, *args: with_real(getattr(decoded(self, name), name), args, {}, name)


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


def with_real(function: Any, args: Any, named: Any, what: str | None = None) -> Any:
    """What a function gives where real tensors and arrays stand in the place of lazy ones."""
    what = name_of_function(function) if what is None else what
    return function(
        *(decoded(value, what) for value in args), **{name: decoded(value, what) for name, value in named.items()}
    )


def name_of_function(function: Any) -> str:
    """How people write it: `cv2.resize`, `numpy.mean`, `.float` of a tensor; its bare name where that is not known."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if getattr(sys.modules.get("cv2"), name, None) is function:
        return f"cv2.{name}"
    module = getattr(function, "__module__", None)
    method = getattr(function, "__objclass__", None) is not None
    return f".{name}" if method else f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def decoded(value: Any, what: str | None = None) -> Any:
    """The real tensor or array in the place of a lazy one, in lists and tuples too; `what` was done with it."""
    if type(value) in (list, tuple):
        return type(value)(decoded(inner, what) for inner in value)
    if type(value) not in (LazyTensor, LazyArray):
        return value
    own: dict[str, Any] = value.__dict__
    call: Call = own["_call"]
    if call is current():
        fail(call, what)
    if "_real" not in own:
        own["_real"] = own["_opened"].real()
    return own["_real"]


def fail(call: Call, what: str | None) -> None:
    """Note that the image's pixels are needed, for `what` or for the function of a library that the data set called.

    If that is one of torchvision's transforms, it was not found in the data set.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torchvision.transforms.transforms" or module.startswith("torchvision.transforms.v2._"):
            call.fail(NEW_TRANSFORM)
        if not module.startswith(("PIL.", "torch", "numpy.", _PACKAGE)):
            break
        if not module.startswith(_PACKAGE):
            what = f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    call.fail(PIXELS, what)
