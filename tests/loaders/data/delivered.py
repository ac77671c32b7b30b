"""What a wrapped loader delivers, sample by sample, in a form that can be compared exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1

from kernel_monitor.loaders import switchable

from ..conftest import settle

FIXED = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])


def described(image: Any) -> tuple[str, str, tuple[int, ...], bytes]:
    """A transform that tells all of an image: kind, mode, size, pixels."""
    return type(image).__name__.replace("ImageFile", ""), image.mode, image.size, np.asarray(image).tobytes()


def as_listed(target: Any) -> list[Any]:
    return ["seen", target]


def same(one: Any, other: Any) -> bool:
    """Equal in type, and in value all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def samples(dataset: Any, backend: str = "torchvision", **options: Any) -> tuple[list[Any], list[str]]:
    """One epoch in order, sample by sample, and what decoded each."""
    loader = switchable(DataLoader(dataset, batch_size=2, collate_fn=list, **options), seed=1)
    loader.switch(backend)
    settle(loader)
    delivered = [sample for batch in loader for sample in batch]
    assert loader.backend == backend
    decoders = loader.decoders()
    loader.release()
    return delivered, decoders
