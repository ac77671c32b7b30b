"""Functions on samples of any structure: find and replace values, compare samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

Place = tuple[Any, ...]
"""The path to a value inside a sample: indices, keys and names of fields."""

_LEAST = 8  # pixels along an edge, for what counts as an image
DEPTH = 6  # levels that are searched


def places(sample: Any, sought: Any, depth: int = DEPTH) -> Iterator[Place]:
    """Yield every place of an object in a sample; objects are compared by identity."""
    if sample is sought:
        yield ()
    elif depth:
        for key, value in _parts(sample):
            for rest in places(value, sought, depth - 1):
                yield (key, *rest)


def values(sample: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield every value inside a sample that is no container."""
    parts = list(_parts(sample)) if depth else []
    for _, value in parts:
        yield from values(value, depth - 1)
    if not parts:
        yield sample


def put(sample: Any, place: Place, value: Any) -> Any:
    """Return the sample with a value at a place; lists and dictionaries are changed, other containers copied."""
    if not place:
        return value
    key = place[0]
    if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
        return dataclasses.replace(sample, **{key: put(getattr(sample, key), place[1:], value)})
    inner = put(sample[key], place[1:], value)
    if isinstance(sample, tuple):
        changed = [*sample[:key], inner, *sample[key + 1 :]]
        return sample._make(changed) if hasattr(sample, "_make") else tuple(changed)  # a named tuple
    sample[key] = inner
    return sample


def form(sample: Any, depth: int = DEPTH) -> Any:
    """Return the types, keys and lengths of a sample, without its values; hashable."""
    kind = type(sample)
    parts = list(_parts(sample)) if depth else []
    return (kind, *((key, form(value, depth - 1)) for key, value in parts)) if parts else kind


def equal(a: Any, b: Any) -> bool:
    """Return whether two samples are the same, bit for bit; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
            return False
        return bool(
            torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) if a.is_floating_point() else torch.equal(a, b)
        )
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
    if isinstance(a, Image.Image):
        return bool(a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    parts_a, parts_b = list(_parts(a)), list(_parts(b))
    if parts_a or parts_b:
        return [key for key, _ in parts_a] == [key for key, _ in parts_b] and all(
            equal(x, y) for (_, x), (_, y) in zip(parts_a, parts_b, strict=True)
        )
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - the user's own type may raise anything; then the samples do not count as equal
        return False


def only_images_differ(a: Any, b: Any, depth: int = DEPTH) -> bool:
    """Return whether two samples differ in nothing but the values of images: arrays of at least two long dimensions."""
    if equal(a, b):
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Image.Image):
        return bool(a.mode == b.mode and a.size == b.size)
    if isinstance(a, torch.Tensor | np.ndarray):
        long = [length for length in a.shape if length >= _LEAST]
        floats_or_bytes = a.dtype in (torch.uint8, np.uint8) or (
            a.is_floating_point() if isinstance(a, torch.Tensor) else a.dtype.kind == "f"
        )
        return bool(a.shape == b.shape and a.dtype == b.dtype and len(long) > 1 and floats_or_bytes)
    parts_a, parts_b = (list(_parts(one)) if depth else [] for one in (a, b))
    if not parts_a or [key for key, _ in parts_a] != [key for key, _ in parts_b]:
        return False
    return all(only_images_differ(x, y, depth - 1) for (_, x), (_, y) in zip(parts_a, parts_b, strict=True))


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
