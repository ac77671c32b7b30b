"""The lists of transforms whose parity is tested and shown in docs/transforms.md."""

from __future__ import annotations

import random
import warnings
from typing import Any

import albumentations as A  # noqa: N812 - as everybody imports it
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from torchvision import transforms as v1
from torchvision.models import ResNet50_Weights
from torchvision.transforms import InterpolationMode, v2

from .timm_standin import timm_transforms

NORM = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
HALF = ([0.5] * 3, [0.5] * 3)


def _v1(*transforms: Any) -> Any:
    return v1.Compose([*transforms, v1.ToTensor(), v1.Normalize(*NORM)])


def _v2(*transforms: Any) -> Any:
    """As torchvision recommends it: on 8-bit tensors."""
    return v2.Compose([v2.ToImage(), *transforms, v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORM)])


def _floats(*transforms: Any) -> Any:
    return v1.Compose([v1.ToTensor(), *transforms])


def _deprecated(make: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


_SQUARE = v1.Resize((64, 72))
_SQUARE2 = v2.Resize((64, 72))
_CUBIC, _LANCZOS = InterpolationMode.BICUBIC, InterpolationMode.LANCZOS
_NEAREST, _EXACT = InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT
_BILINEAR = InterpolationMode.BILINEAR
_AFFINE: dict[str, Any] = {"degrees": 30, "translate": (0.1, 0.2), "scale": (0.7, 1.3), "shear": (-8, 8, -4, 4)}

# Everything in DALI. The first word is the transform that the chain is about.
DIRECT: dict[str, Any] = {
    "RandomResizedCrop": _v1(v1.RandomResizedCrop(48), v1.RandomHorizontalFlip()),
    "RandomResizedCrop, v2": _v2(v2.RandomResizedCrop(48), v2.RandomHorizontalFlip()),
    "RandomResizedCrop bicubic": _v1(v1.RandomResizedCrop((40, 48), interpolation=_CUBIC)),
    "RandomResizedCrop nearest, v2": _v2(v2.RandomResizedCrop(48, interpolation=_NEAREST)),
    "RandomResizedCrop after Resize": _v1(v1.Resize(70), v1.RandomResizedCrop(32)),
    "Resize and CenterCrop": _v1(v1.Resize(64), v1.CenterCrop(56)),
    "Resize and CenterCrop, v2, padded": v2.Compose([v2.Resize(40), v2.CenterCrop((70, 41)), v2.PILToTensor()]),
    "Resize with max_size": _v1(v1.Resize(60, max_size=80), v1.CenterCrop(56)),
    "Resize bicubic": _v1(v1.Resize((56, 60), interpolation=_CUBIC)),
    "Resize bicubic, v2": _v2(v2.Resize((56, 60), interpolation=_CUBIC)),
    "Resize lanczos": _v1(v1.Resize((56, 60), interpolation=_LANCZOS)),
    "Resize nearest, v2": _v2(v2.Resize((56, 60), interpolation=_NEAREST)),
    "Resize nearest-exact, v2": _v2(v2.Resize((56, 60), interpolation=_EXACT)),
    "Resize of floats": _floats(v1.Resize((40, 44)), v1.Normalize(*NORM)),
    "CenterCrop": v1.Compose([v1.CenterCrop(50), v1.PILToTensor()]),
    "RandomCrop": _v1(v1.RandomCrop(56)),
    "RandomCrop, v2": _v2(v2.RandomCrop((50, 40))),
    "RandomCrop padded": _v1(_SQUARE, v1.RandomCrop(64, padding=4)),
    "RandomCrop padded, v2": _v2(_SQUARE2, v2.RandomCrop(64, padding=[4, 2])),
    "RandomCrop padded as needed": _v1(v1.RandomCrop(110, padding=(1, 2, 3, 4), pad_if_needed=True, fill=(9, 99, 199))),
    "RandomCrop padded as needed, v2": _v2(v2.RandomCrop((110, 90), pad_if_needed=True, fill=7)),
    "Pad": _v1(_SQUARE, v1.Pad((1, 2, 3, 4), fill=(200, 100, 0))),
    "Pad, v2": _v2(v2.Pad(5, fill=128), _SQUARE2),
    "RandomHorizontalFlip": _v1(v1.RandomHorizontalFlip(0.3), _SQUARE),
    "RandomHorizontalFlip of floats": _floats(_SQUARE, v1.Normalize(*NORM), v1.RandomHorizontalFlip()),
    "RandomVerticalFlip": _v1(_SQUARE, v1.RandomVerticalFlip(), v1.RandomHorizontalFlip()),
    "RandomVerticalFlip, v2": _v2(v2.RandomVerticalFlip(0.7), _SQUARE2),
    "RandomRotation": _v1(_SQUARE, v1.RandomRotation(180, fill=40)),
    "RandomRotation by 90": _v1(v1.RandomRotation((90, 90), center=(20, 30)), _SQUARE),
    "RandomRotation, v2": _v2(_SQUARE2, v2.RandomRotation((-20, 50))),
    "RandomAffine": _v1(_SQUARE, v1.RandomAffine(**_AFFINE)),
    "RandomAffine, v2": _v2(v2.RandomAffine(**_AFFINE, fill=20), _SQUARE2),
    "Grayscale": _v1(_SQUARE, v1.Grayscale(3)),
    "Grayscale, v2": _v2(_SQUARE2, v2.Grayscale(3)),
    "RandomGrayscale": _v1(_SQUARE, v1.RandomGrayscale(0.5)),
    "RandomGrayscale, v2": _v2(v2.RandomGrayscale(0.5), _SQUARE2),
    "RandomGrayscale of floats": _floats(v1.RandomGrayscale(0.5), _SQUARE),
    "RandomInvert": _v1(_SQUARE, v1.RandomInvert(0.4)),
    "RandomInvert, v2": _v2(v2.RandomInvert(), _SQUARE2),
    "ColorJitter": _v1(_SQUARE, v1.ColorJitter(0.4, 0.4, 0.4)),
    "ColorJitter, v2": _v2(_SQUARE2, v2.ColorJitter(0.4, 0.4, 0.4)),
    "ColorJitter of brightness": _v1(_SQUARE, v1.ColorJitter(brightness=(0.2, 1.8))),
    "ColorJitter of two, before": _v2(v2.ColorJitter(contrast=0.8, saturation=0.8), _SQUARE2),
    "GaussianBlur": _v1(_SQUARE, v1.GaussianBlur(9)),
    "GaussianBlur, v2": _v2(_SQUARE2, v2.GaussianBlur((5, 9), (0.5, 3.0))),
    "GaussianBlur of floats": _floats(_SQUARE, v1.GaussianBlur(5)),
    "RandomErasing": v1.Compose([_v1(_SQUARE), v1.RandomErasing(0.8)]),
    "RandomErasing with a colour": _floats(_SQUARE, v1.RandomErasing(0.8, value=(0.1, 0.5, 2.0)), v1.Normalize(*NORM)),
    "RandomErasing, v2": v2.Compose([_v2(_SQUARE2), v2.RandomErasing(0.8, value=0.5)]),
    "RandomErasing of bytes": v1.Compose([_SQUARE, v1.PILToTensor(), v1.RandomErasing(0.8, value=77)]),
    "RandomApply": _v1(_SQUARE, v1.RandomApply([v1.GaussianBlur(5), v1.RandomRotation(30)], p=0.6)),
    "RandomApply, v2": _v2(v2.RandomApply([v2.ColorJitter(0.4, 0.4), v2.RandomVerticalFlip()]), _SQUARE2),
    "RandomChoice": _v1(
        _SQUARE, v1.RandomChoice([v1.RandomAffine(20), v1.Compose([v1.Grayscale(3), v1.RandomHorizontalFlip()])])
    ),
    "RandomChoice, v2": _v2(
        _SQUARE2, v2.RandomChoice([v2.GaussianBlur(7), v2.ColorJitter(saturation=0.9), v2.Identity()], p=[3, 2, 1])
    ),
    "Identity": v2.Compose([v2.Identity(), v2.Compose([torch.nn.Identity(), _SQUARE2]), v2.ToImage()]),
    "ToTensor, v2": v2.Compose([_SQUARE2, _deprecated(v2.ToTensor)]),
    "PILToTensor": v1.Compose([_SQUARE, v1.PILToTensor()]),
    "ToImage": v2.Compose([_SQUARE2, v2.ToImage()]),
    "ToPureTensor": v2.Compose([v2.ToImage(), _SQUARE2, v2.ToPureTensor()]),
    "ToDtype unscaled": v2.Compose([v2.Resize((40, 40)), v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "ConvertImageDtype": v1.Compose([_SQUARE, v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "Normalize twice": v1.Compose([_v1(_SQUARE), v1.Normalize([0.1], [2.0])]),
    "ImageClassification": ResNet50_Weights.IMAGENET1K_V2.transforms(),
    "SimCLR without hue": _v1(
        v1.RandomResizedCrop(48),
        v1.RandomHorizontalFlip(),
        v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8)], p=0.8),
        v1.RandomGrayscale(0.2),
        v1.RandomApply([v1.GaussianBlur(5)]),
    ),
}


class Preset:
    """As torchvision's reference scripts write theirs: an object that merely holds a chain."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class PresetModule(torch.nn.Module):
    def __init__(self, transforms: Any) -> None:
        super().__init__()
        self.inner = transforms

    def forward(self, image: Any) -> Any:
        """Transform an image."""
        return self.inner(image)


def timm_training(interpolation: str, *policy: Any) -> Any:
    """What timm's `create_transform(48, is_training=True)` makes."""
    timm = timm_transforms()
    return v1.Compose(
        [
            timm.RandomResizedCropAndInterpolation(48, interpolation=interpolation),
            v1.RandomHorizontalFlip(0.5),
            *(policy or [v1.ColorJitter(0.4, 0.4, 0.4)]),
            timm.MaybeToTensor(),
            v1.Normalize(*map(torch.tensor, NORM)),
        ]
    )


_TIMM = timm_transforms()
DIRECT |= {
    "RandomResizedCropAndInterpolation": timm_training("bilinear"),
    "RandomResizedCropAndInterpolation bicubic": timm_training("bicubic", v1.RandomVerticalFlip()),
    "RandomResizedCropAndInterpolation of two": timm_training("random", v1.RandomGrayscale(0.1)),
    "MaybeToTensor": v1.Compose([_SQUARE, _TIMM.MaybeToTensor(), _TIMM.MaybeToTensor(), v1.Normalize(*NORM)]),
    "MaybePILToTensor": v1.Compose([_SQUARE, _TIMM.MaybePILToTensor(), _TIMM.MaybePILToTensor()]),
    "a preset object": Preset(_v1(v1.RandomResizedCrop(48), v1.RandomHorizontalFlip())),
    "a preset module": PresetModule(torch.nn.Sequential(v2.RandomResizedCrop(48), v2.ToImage())),
}


def reference(policy: Any, version: Any = v1) -> Any:
    """torchvision's own training preset (references/classification/presets.py) with an augmentation policy."""
    return version.Compose(
        [
            version.RandomResizedCrop(48, interpolation=_BILINEAR),
            version.RandomHorizontalFlip(0.5),
            policy,
            version.PILToTensor(),
            version.ConvertImageDtype(torch.float),
            version.Normalize(*NORM),
            version.RandomErasing(0.5),
        ]
    )


def _noise(image: Any) -> Any:
    """A function of the user's own that draws from all three default generators."""
    pixels = np.asarray(image).astype(float)
    pixels += np.random.normal(0, 4, pixels.shape)  # noqa: NPY002 - as users' functions do
    pixels += random.gauss(0, 4) + float(torch.randn(1)) * 4
    return pixels.clip(0, 255).astype(np.uint8)


# The position from which torchvision's transforms run after DALI.
HYBRID: dict[str, tuple[Any, int]] = {
    "AutoAugment": (reference(v1.AutoAugment()), 2),
    "RandAugment": (reference(v1.RandAugment()), 2),
    "TrivialAugmentWide": (reference(v1.TrivialAugmentWide()), 2),
    "AugMix": (reference(v1.AugMix()), 2),
    "AutoAugment, v2": (reference(v2.AutoAugment(), v2), 2),
    "RandAugment, v2": (reference(v2.RandAugment(), v2), 2),
    "TrivialAugmentWide, v2": (reference(v2.TrivialAugmentWide(), v2), 2),
    "ColorJitter with hue": (_v1(_SQUARE, v1.ColorJitter(0.1, 0.1, 0.1, 0.05), v1.RandomHorizontalFlip()), 1),
    "ColorJitter of floats": (_floats(_SQUARE, v1.ColorJitter(0.4)), 0),
    "RandomErasing with noise": (v1.Compose([_v1(_SQUARE), v1.RandomErasing(1.0, value="random")]), 1),
    "RandomRotation expanded": (_v1(v1.RandomRotation(30, expand=True), _SQUARE), 0),
    "RandomRotation bilinear": (_v1(_SQUARE, v1.RandomRotation(30, interpolation=_BILINEAR)), 1),
    "RandomAffine bilinear, v2": (_v2(_SQUARE2, v2.RandomAffine(**_AFFINE, interpolation=_BILINEAR)), 2),
    "RandomPerspective": (_v1(_SQUARE, v1.RandomPerspective()), 1),
    "ElasticTransform": (_v2(_SQUARE2, v2.ElasticTransform()), 2),
    "RandomPosterize": (_v1(_SQUARE, v1.RandomPosterize(6)), 1),
    "RandomOrder": (_v1(_SQUARE, v1.RandomOrder([v1.ColorJitter(0.2), v1.RandomAffine(9)])), 1),
    "RandomApply of a crop": (_v1(_SQUARE, v1.RandomApply([v1.CenterCrop(40)], p=0.5), _SQUARE), 1),
    "RandomCrop reflected": (_v1(_SQUARE, v1.RandomCrop(64, padding=4, padding_mode="reflect")), 1),
    "Resize nearest": (_v1(v1.RandomHorizontalFlip(), v1.Resize((40, 40), interpolation=_NEAREST)), 1),
    "Lambda": (v1.Compose([_SQUARE, v1.Lambda(_noise), v1.ToTensor()]), 1),
    "a function first": (v1.Compose([_noise, v1.ToTensor(), _SQUARE]), 0),
    "a preset object of AutoAugment": (Preset(reference(v1.AutoAugment())), 2),
    "timm with a policy": (timm_training("random", v1.RandAugment()), 2),
    "Grayscale to one channel": (v1.Compose([_SQUARE, v1.Grayscale(), v1.ToTensor()]), 1),
}


def _named(*transforms: Any) -> Any:
    return A.Compose([*transforms, A.Normalize(), ToTensorV2()])


_SQUARE3 = A.Resize(64, 72)

# For NumPy arrays, all in DALI.
OF_ARRAYS: dict[str, Any] = {
    "ToPILImage": v1.Compose([v1.ToPILImage(), _SQUARE, v1.ToTensor()]),
    "ToTensor of an array": _floats(_SQUARE),
    "RandomResizedCrop": _named(A.RandomResizedCrop((48, 40)), A.HorizontalFlip()),
    "RandomResizedCrop of a part": _named(A.Resize(70, 80), A.RandomResizedCrop((48, 40), scale=(0.2, 0.5))),
    "Resize": _named(_SQUARE3),
    "Resize and crop": _named(A.Resize(80, 90), A.RandomCrop(48, 50), A.VerticalFlip(p=0.3)),
    "SmallestMaxSize": _named(A.SmallestMaxSize(64), A.CenterCrop(56, 56)),
    "LongestMaxSize": _named(A.LongestMaxSize(90), A.Resize(40, 44)),
    "CenterCrop": _named(A.CenterCrop(50, 53)),
    "RandomCrop": _named(A.RandomCrop(48, 50)),
    "HorizontalFlip": _named(_SQUARE3, A.HorizontalFlip()),
    "VerticalFlip": _named(_SQUARE3, A.VerticalFlip(), A.HorizontalFlip(p=0.9)),
    "RandomBrightnessContrast": _named(_SQUARE3, A.RandomBrightnessContrast(p=1.0)),
    "RandomBrightnessContrast, strong": _named(_SQUARE3, A.RandomBrightnessContrast(0.5, (-0.6, 0.9), p=0.7)),
    "Normalize by halves": A.Compose([_SQUARE3, A.Normalize(0.5, 0.5), ToTensorV2()]),
    "Normalize before a flip": A.Compose([_SQUARE3, A.Normalize(), A.HorizontalFlip(), ToTensorV2()]),
    "ToTensorV2 of pixels": A.Compose([_SQUARE3, A.HorizontalFlip(), ToTensorV2()]),
    "NoOp": _named(_SQUARE3, A.NoOp()),
}

# The position from which they run after DALI.
OF_ARRAYS_HYBRID: dict[str, tuple[Any, int]] = {
    "Rotate": (_named(_SQUARE3, A.Rotate()), 1),
    "ShiftScaleRotate, a choice": (_named(_SQUARE3, A.OneOf([A.Affine(scale=(0.8, 1.2)), A.Perspective()], p=0.8)), 1),
    "CoarseDropout": (_named(_SQUARE3, A.HorizontalFlip(), A.CoarseDropout(p=1.0)), 2),
    "Resize by area": (_named(A.RandomCrop(56, 56), A.Resize(40, 40, interpolation=3)), 1),
    "RandomCrop with padding": (_named(A.RandomCrop(90, 90, pad_if_needed=True)), 0),
    "by chance": (_named(_SQUARE3, A.RandomCrop(40, 44, p=1.0), A.Resize(40, 44, p=0.5)), 2),
}
