"""A watch on a data set while samples are read: does it change its attributes, its module's globals, or files?"""

from __future__ import annotations

import builtins
import functools
import io
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from ..attributes import attributes, global_names

CHANGES = "changes its own attributes"
WRITES = "writes files"
FEW = 16  # kept samples that are checked
_LRU = type(functools.lru_cache(len))
_SEARCHED = 1000  # the most functions that are searched for caches
LARGE = 100_000  # elements; longer containers of the module are not watched


class ChangeDetector:
    """A context manager that watches a data set on the calling thread.

    Args:
        dataset: a copy of the user's data set.
        shared: containers to restore at the end: those among its module's globals, and the attributes of the objects
            that the copy shares with the user's data set.

    Attributes:
        reason: what the data set changes, as the end of "The data set …"; None if no change was noticed.
        opened: whether the data set opened a file.
    """

    def __init__(self, dataset: Any, shared: list[Any]) -> None:
        self.reason: str | None = None
        self.opened = False
        self._dataset = dataset
        self._shared = [(values, type(values)(values)) for values in shared if len(values) <= LARGE]
        self._state: Any = None
        self._thread = threading.get_ident()
        self._open = builtins.open

    def __enter__(self) -> ChangeDetector:
        opened = self._opener(self._open)
        builtins.open = io.open = opened
        return self

    def __exit__(self, *_: object) -> None:
        builtins.open = io.open = self._open
        for values, before in self._shared:
            if not _same(values, before):
                self.reason = self.reason or CHANGES
                values.clear()
                values.extend(before) if isinstance(values, list) else values.update(before)

    def compare(self) -> None:
        """Compare the attributes with those at the last call. The first call follows a sample, which may set some."""
        before, self._state = self._state, _state(self._dataset)
        if before is not None and before != self._state:
            self.reason = self.reason or CHANGES

    def _opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: Any = "r", *args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.opened = True
                if isinstance(mode, str) and set(mode) & set("wax+"):
                    self.reason = self.reason or WRITES
            return original(file, mode, *args, **named)

        return watched


def keeps_images(dataset: Any, depth: int = 2) -> bool:
    """Return whether a data set, or one that it wraps, keeps all its samples' images in its attributes, decoded."""
    length = len(dataset)
    kept = list(attributes(dataset).values())
    kept += [inner for value in kept if type(value) in (list, tuple) and len(value) < FEW for inner in value]
    for value in kept:
        kind = type(value)
        if (
            kind in (dict, OrderedDict)
            and length <= 2 * len(value)
            and all(map(_is_image, islice(value.values(), FEW)))
        ):
            return True
        if issubclass(kind, torch.Tensor | np.ndarray) and value.ndim > 2 and len(value) == length:
            return True
        if kind in (list, tuple) and len(value) == length and all(map(_is_image, value[:FEW])):
            return True
        if depth and issubclass(kind, Dataset) and keeps_images(value, depth - 1):
            return True
    return False


class Cached(NamedTuple):
    """A function with a cache of `functools`, which the data set's code names."""

    kept: int  # results that it keeps now
    most: int | None  # results that it keeps at most; None: any number


def caches(dataset: Any, is_users: Callable[[Any], bool]) -> list[Cached]:
    """Return the functions with a cache of `functools` that a data set's methods or attributes are, or that they name.

    Functions that these name are searched, too; none of the user's code is run.

    Args:
        dataset: the user's data set.
        is_users: returns whether a class or function is the user's own; libraries are not searched.
    """
    queue: deque[Any] = deque(attributes(dataset).values())
    for kind in type(dataset).__mro__:
        if is_users(kind):
            queue.extend(vars(kind).values())
    found: list[Cached] = []
    seen: set[int] = set()
    while queue and len(seen) < _SEARCHED:
        value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is _LRU:
            found.append(Cached(value.cache_info().currsize, value.cache_info().maxsize))
        elif type(value) in (types.FunctionType, types.MethodType) and is_users(value):
            names, scope = global_names(value.__code__), value.__globals__
            named = (scope.get(name) for name in names)
            queue.extend(inner for inner in named if type(inner) in (_LRU, types.FunctionType))
            queue.extend(cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        return type(cell.cell_contents) in (_LRU, types.FunctionType)
    except ValueError:  # not assigned yet
        return False


def _is_image(value: Any, depth: int = 3) -> bool:
    """Return whether a kept sample is, or has in it, an image that is decoded."""
    kind = type(value)
    if issubclass(kind, torch.Tensor | np.ndarray):
        return bool(value.ndim > 1)
    if kind in (list, tuple, dict):
        return depth > 0 and any(_is_image(inner, depth - 1) for inner in (value.values() if kind is dict else value))
    own = attributes(value)  # Pillow decodes an opened image at the first use of its pixels
    return issubclass(kind, Image.Image) and own.get("_im", own.get("im")) is not None


def _state(value: Any) -> Any:
    """Return the identities of an object's attributes and the lengths of its containers, also one level deeper."""
    found = _attributes(value)
    for inner in attributes(value).values():
        found += _attributes(inner)
    for kind in type(value).__mro__:
        found += [(name, id(kept), 0) for name, kept in vars(kind).items() if not callable(kept)]
    return found


def _attributes(value: Any) -> list[tuple[str, int, int]]:
    return [(name, id(kept), _length(kept)) for name, kept in attributes(value).items()]


def _length(value: Any) -> int:
    """Return the length of a list, dictionary or set, by the base class's method, which runs no user code; else 0."""
    grows: tuple[Any, ...] = (list, dict, set)
    return next((base.__len__(value) for base in grows if issubclass(type(value), base)), 0)


_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def _same(values: Any, before: Any) -> bool:
    """Return whether a container holds the same elements: plain values by value, all others by identity."""
    if len(values) != len(before):
        return False
    if isinstance(values, set):
        return {id(value) for value in values} == {id(value) for value in before}
    if isinstance(values, dict):
        known = {id(key): value for key, value in before.items()}
        return all(id(key) in known and _equal(value, known[id(key)]) for key, value in values.items())
    return all(map(_equal, values, before))


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in _PLAIN and a == b)
