"""Lazy arrays: objects that behave as NumPy arrays of an image, and are decoded where their pixels are needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np


class LazyArray:
    """A lazy array from OpenCV, or of a lazy image.

    It is no `np.ndarray`, because functions in C would read the memory of such an array. But it claims that class, and
    NumPy's functions (and the replaced ones of OpenCV) get the real array in its place.
    """

    __hash__ = None  # type: ignore[assignment]

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray

    def _pixels(self, operation: str | None) -> Any:
        """Return the real array, for an operation of this name."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pixels(f".{name}"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._pixels(f".{name}"), name, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._pixels("as an array"), dtype=dtype, copy=copy)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return with_real(func, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        return with_real(getattr(ufunc, method), args, named, name_of_function(ufunc))


def _delegate(name: str) -> Callable[..., Any]:
    return lambda self, *args: with_real(getattr(self._pixels(name), name), args, {}, name)


for _name in (
    *("getitem", "setitem", "len", "iter", "contains", "bool", "float", "int", "index", "neg", "pos", "abs", "invert"),
    *("eq", "ne", "lt", "le", "gt", "ge", "str", "repr", "format", "copy", "deepcopy", "reduce", "reduce_ex"),
    *(
        prefix + operator
        for prefix in ("", "r", "i")
        for operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
    ),
):
    setattr(LazyArray, f"__{_name}__", _delegate(f"__{_name}__"))


def with_real(function: Any, args: Any, named: Any, operation: str | None = None) -> Any:
    """Call a function with real tensors and arrays in place of lazy ones."""
    operation = name_of_function(function) if operation is None else operation
    return function(
        *(decoded(value, operation) for value in args),
        **{name: decoded(value, operation) for name, value in named.items()},
    )


def name_of_function(function: Any) -> str:
    """Return a function's name in messages: `cv2.resize`, `numpy.mean`, `.float` of a tensor; else its bare name."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if getattr(sys.modules.get("cv2"), name, None) is function:
        return f"cv2.{name}"
    module = getattr(function, "__module__", None)
    method = getattr(function, "__objclass__", None) is not None
    return f".{name}" if method else f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name


def decoded(value: Any, operation: str | None = None) -> Any:
    """Return the real tensor or array for a lazy one, also in lists and tuples; `operation` is named in reasons."""
    if type(value) in (list, tuple):
        return type(value)(decoded(inner, operation) for inner in value)
    pixels = getattr(type(value), "_pixels", None)
    return value if pixels is None else pixels(value, operation)


def is_lazy(value: Any) -> bool:
    """Return whether a value is a lazy array; it claims another class."""
    return issubclass(type(value), LazyArray)
