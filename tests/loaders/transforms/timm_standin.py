"""timm's transforms, or their like: timm is not among what the tests need, and its models are large.

Written from timm's documented interface (timm.data.transforms, 1.0); where timm is installed, it is used.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import functional

NAME = "timm.data.transforms"


class RandomResizedCropAndInterpolation:
    """`interpolation` is a name, or "random": drawn from bilinear and bicubic for each image."""

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
    ) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.scale, self.ratio = scale, ratio
        both = (v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC)
        self.interpolation = both if interpolation == "random" else v1.InterpolationMode(interpolation)

    @staticmethod
    def get_params(img: Any, scale: tuple[float, float], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
        """The box: top, left, height, width."""
        top, left, height, width = v1.RandomResizedCrop.get_params(img, list(scale), list(ratio))
        return top, left, height, width

    def __call__(self, img: Any) -> Any:
        top, left, height, width = self.get_params(img, self.scale, self.ratio)
        chosen = random.choice(self.interpolation) if isinstance(self.interpolation, tuple) else self.interpolation
        return functional.resized_crop(img, top, left, height, width, list(self.size), chosen)


class MaybeToTensor(v1.ToTensor):
    def __call__(self, pic: Any) -> torch.Tensor:
        return pic if isinstance(pic, torch.Tensor) else functional.to_tensor(pic)


class MaybePILToTensor:
    def __call__(self, pic: Any) -> torch.Tensor:
        return pic if isinstance(pic, torch.Tensor) else functional.pil_to_tensor(pic)


def timm_transforms() -> ModuleType:
    """timm's module; where there is no timm, one under its name with the classes above."""
    if NAME not in sys.modules:
        if importlib.util.find_spec("timm") is not None:
            return import_module(NAME)
        module = ModuleType(NAME)
        for one in (RandomResizedCropAndInterpolation, MaybeToTensor, MaybePILToTensor):
            setattr(module, one.__name__, one)
        sys.modules[NAME] = module
    return sys.modules[NAME]
