"""NumPy and OpenCV as a data set's own functions see them: what is given an image that was not decoded asks first.

Their functions are written in C, and take no stand-in for an array. Nothing of these libraries is changed: `View` puts
one of these modules in the place of theirs among the globals of the data set's functions.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np

from .openers import ARRAY, BGR, RGB, Opener, asking, opening

COPIES = (np.array, np.asarray, np.ascontiguousarray)
"""Functions that make the array of an image, or copy one."""

_KNOWN: dict[str, types.ModuleType] = {}


class LibraryView(types.ModuleType):
    """A module whose functions are others; all else is looked up where it is."""

    def __init__(self, module: types.ModuleType, functions: dict[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(functions)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def seen(module: types.ModuleType, code: types.CodeType) -> types.ModuleType:
    """What stands for a module in a function of this code; the module itself where that does as well."""
    if module is np:
        return _numpy() if _copies(code) else module
    return _opencv(module) if module is sys.modules.get("cv2") else module


@functools.lru_cache(maxsize=4096)
def _copies(code: types.CodeType) -> bool:
    """Whether code names one of `COPIES`."""
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(function.__name__ in code.co_names for function in COPIES) or any(map(_copies, inside))


def replacement(function: Any) -> Any:
    """What stands for a function that was imported by its name; the function itself for all others."""
    name = getattr(function, "__name__", "")
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and getattr(cv2, name, None) is function:
        return getattr(_opencv(cv2), name)
    return getattr(_numpy(), name) if function in COPIES else function


def _numpy() -> types.ModuleType:
    if "numpy" not in _KNOWN:
        _KNOWN["numpy"] = LibraryView(np, {function.__name__: asking(function) for function in COPIES})
    return _KNOWN["numpy"]


def _opencv(cv2: Any) -> types.ModuleType:
    if "cv2" not in _KNOWN:
        functions = {
            name: asking(value) for name, value in vars(cv2).items() if isinstance(value, types.BuiltinFunctionType)
        }
        for name in ("imread", "imdecode"):
            functions[name] = opening(Opener(getattr(cv2, name), ARRAY, _colours, _turns))
        _KNOWN["cv2"] = LibraryView(cv2, functions)
    return _KNOWN["cv2"]


def _flags(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    cv2 = sys.modules["cv2"]
    return args[0] if len(args) == 1 and not named else named.get("flags", cv2.IMREAD_COLOR)


def _colours(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    cv2 = sys.modules["cv2"]
    if len(args) > 1 or named.keys() - {"flags"}:
        return None
    flags = _flags(args, named)
    if not isinstance(flags, int) or flags < 0:
        return None
    flags &= ~cv2.IMREAD_IGNORE_ORIENTATION
    red_first = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # since 4.11
    return BGR if flags == cv2.IMREAD_COLOR else RGB if red_first and flags & ~cv2.IMREAD_COLOR == red_first else None


def _turns(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return not _flags(args, named) & sys.modules["cv2"].IMREAD_IGNORE_ORIENTATION
