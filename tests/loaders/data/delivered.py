"""What a wrapped loader delivers, sample by sample, in a form that can be compared exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from kernel_monitor.loaders import switchable

from ..conftest import switch_to


def described(image: Any) -> tuple[str, str, tuple[int, ...], bytes]:
    """A transform that tells all of an image: kind, mode, size, pixels."""
    return type(image).__name__.replace("ImageFile", ""), image.mode, image.size, np.asarray(image).tobytes()


def as_listed(target: Any) -> list[Any]:
    return ["seen", target]


def samples(dataset: Any, backend: str = "torchvision", **options: Any) -> tuple[list[Any], list[str]]:
    """One epoch in order, sample by sample, and what decoded each."""
    loader = switchable(DataLoader(dataset, batch_size=2, collate_fn=list, **options), seed=1)
    switch_to(loader, backend)
    delivered = [sample for batch in loader for sample in batch]
    assert loader.backend == backend
    decoders = loader.decoders()
    loader.release()
    return delivered, decoders
