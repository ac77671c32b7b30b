"""The user's own transform objects, copied, with their random numbers taken from the plan.

Recognised random transforms get their parameters put in: RandomResizedCrop by replacing, in the copy, the method
that draws the box; flips by a probability of 0 or 1. A transform that is not recognised draws from torch's and
Python's default generators, which are seeded for it from the sample's key.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from .draws import UInt64s, generator_seed, uniforms
from .params import CROP_DRAWS, crop_box
from .translate import COMPOSES, translatable

CROPS = (v1.RandomResizedCrop, v2.RandomResizedCrop)
FLIPS = (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip)


class Injected:
    """A transform whose result is a function of the sample's key and the image alone.

    Usage: `begin(keys)` for a batch, then `run(image, row)` for each of its samples.
    """

    def __init__(self, transform: Any) -> None:
        self._operations: list[_Crop | _Flip | _Seeded] = []
        self._count = 0
        self._transform = self._copy(transform)

    def begin(self, keys: UInt64s) -> None:
        """Draw the numbers of n samples, uint64[n]."""
        for operation in self._operations:
            operation.begin(keys)

    def run(self, image: Any, row: int) -> Any:
        """Transform one image as sample `row` of the batch begun last."""
        for operation in self._operations:
            operation.row = row
            operation.set()
        return self._transform(image)

    def drawn(self) -> dict[int, Any]:
        """What the last sample drew, by position in the chain: boxes (top, left, height, width) and flips."""
        return {op.position: op.drawn for op in self._operations if not isinstance(op, _Seeded)}

    def _copy(self, transform: Any) -> Any:
        if type(transform) in COMPOSES:
            compose = copy.copy(transform)
            compose.transforms = [self._copy(inner) for inner in transform.transforms]
            return compose
        position = self._count
        self._count += 1
        if not translatable(transform):
            operation: _Crop | _Flip | _Seeded = _Seeded(position, transform)
        elif type(transform) in CROPS:
            operation = _Crop(position, copy.copy(transform))
        elif type(transform) in FLIPS:
            operation = _Flip(position, copy.copy(transform))
        else:
            return transform
        self._operations.append(operation)
        return operation.transform


class _Crop:
    """RandomResizedCrop: v2 asks the instance's `make_params`, v1 its `get_params`."""

    def __init__(self, position: int, transform: Any) -> None:
        self.position = position
        self.row = 0
        self.drawn: tuple[int, int, int, int] | None = None
        self._draws: list[list[float]] = []
        self._scale, self._ratio = tuple(transform.scale), tuple(transform.ratio)
        if isinstance(transform, v2.Transform):
            transform.make_params = self._make_params
        else:
            transform.get_params = self._get_params
        self.transform = transform

    def begin(self, keys: UInt64s) -> None:
        self._draws = uniforms(keys, self.position, CROP_DRAWS).tolist()

    def set(self) -> None:
        self.drawn = None

    def _box(self, image: Any) -> tuple[int, int, int, int]:
        _, height, width = functional.get_dimensions(image)
        self.drawn = crop_box(height, width, self._draws[self.row], self._scale, self._ratio)
        return self.drawn

    def _make_params(self, images: list[Any]) -> dict[str, Any]:
        top, left, height, width = self._box(images[0])
        return {"top": top, "left": left, "height": height, "width": width}

    def _get_params(self, image: Any, *_: Any) -> tuple[int, int, int, int]:
        return self._box(image)


class _Flip:
    """RandomHorizontalFlip: certain or impossible, as the plan says."""

    def __init__(self, position: int, transform: Any) -> None:
        self.position = position
        self.row = 0
        self.drawn = False
        self._flips: list[bool] = []
        self._p = float(transform.p)
        self.transform = transform

    def begin(self, keys: UInt64s) -> None:
        self._flips = (uniforms(keys, self.position, 1)[:, 0] < self._p).tolist()

    def set(self) -> None:
        self.drawn = self._flips[self.row]
        self.transform.p = float(self.drawn)


class _Seeded:
    """Any other transform: called with the default generators seeded for this sample."""

    def __init__(self, position: int, transform: Any) -> None:
        self.position = position
        self.row = 0
        self._keys: list[int] = []
        self._inner = transform
        self.transform = self

    def begin(self, keys: UInt64s) -> None:
        self._keys = keys.tolist()

    def set(self) -> None:
        """Nothing to prepare: the seed is set when the chain arrives here."""

    def __call__(self, *inputs: Any) -> Any:
        seed = generator_seed(self._keys[self.row], self.position)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        return self._inner(*inputs)
