"""Chains of transforms from common training recipes, each as a pair of contestants: torchvision and dali-cpu."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torchvision import transforms

from .common import MEAN, SIZE, STD

LEAST = 0.95
"""The share of torchvision's images/s that `dali-cpu` must reach, if it can be chosen."""


class Preset:
    """An object that holds a chain, as in torchvision's reference scripts (references/classification/presets.py)."""

    def __init__(self, *policy: Any) -> None:
        self.transforms = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                *policy,
                transforms.PILToTensor(),
                transforms.ConvertImageDtype(torch.float),
                transforms.Normalize(list(MEAN), list(STD)),
            ]
        )

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def chains() -> Iterator[tuple[str, Any]]:
    """Yield the chains with their names; timm's only if timm is installed."""
    yield "preset object", Preset()
    if importlib.util.find_spec("timm") is None:
        print("timm's training transforms do not take part: timm is not installed.")
    else:
        create = importlib.import_module("timm.data").create_transform
        yield "timm", create(SIZE, is_training=True, interpolation="random")
    yield "RandAugment", Preset(transforms.RandAugment())


def names(chain: str) -> tuple[str, str]:
    """Return the names of a chain's two contestants."""
    return f"{chain}: torchvision", f"{chain}: dali-cpu"
