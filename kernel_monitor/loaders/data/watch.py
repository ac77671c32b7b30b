"""A watch on a data set while samples are read: does it change its attributes, its module's globals, or files?"""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from ..attributes import attributes

CHANGES = "changes its own attributes"
WRITES = "writes files"
FEW = 16  # kept samples that are checked
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
        if issubclass(kind, torch.Tensor | np.ndarray) and value.ndim > 2 and len(value) == length:
            return True
        if kind in (list, tuple) and len(value) == length and all(map(_is_image, value[:FEW])):
            return True
        if depth and issubclass(kind, Dataset) and keeps_images(value, depth - 1):
            return True
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
