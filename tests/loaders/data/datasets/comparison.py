"""Whether two samples are equal, all the way down."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image


def _own(value: Any) -> set[str]:
    """What the classes of an object define themselves."""
    return {name for kind in type(value).__mro__[:-1] for name in vars(kind)}


def equal(one: Any, other: Any) -> bool:
    """Equal in type and value; NaN equals NaN, images and objects with attributes are equal if what they hold is."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return same and equal(vars(one), vars(other))  # of boxes: their format, and the size of their image
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, Image.Image):
        return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float | np.floating) and one != one:  # NaN
        return bool(other != other)
    if dataclasses.is_dataclass(one):
        fields = [field.name for field in dataclasses.fields(one)]
        return all(equal(getattr(one, name), getattr(other, name)) for name in fields)
    if isinstance(one, SimpleNamespace) or (hasattr(one, "__dict__") and "__eq__" not in _own(one)):
        return equal(vars(one), vars(other))
    return bool(one == other)
