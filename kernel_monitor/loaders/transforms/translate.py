"""From torchvision's transforms (v1 and v2) to a `Program`, op by op.

Transforms are recognised by their exact class: a subclass may do something else. Whatever is not in the table
raises `TransformNotTranslatable`, which names the transform and its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from ...errors import TransformNotTranslatable
from .program import CropCenter, CropResize, Mirror, Program, Scale, Step

COMPOSES = (v1.Compose, v2.Compose)


class _Refused(Exception):
    """Why one transform cannot be translated; `translate` adds its name and position."""


def flatten(transform: Any) -> Iterator[Any]:
    """Yield the transforms of a chain in the order in which they run, nested `Compose` opened."""
    if type(transform) in COMPOSES:
        for inner in transform.transforms:
            yield from flatten(inner)
    elif transform is not None:
        yield transform


def name_of(transform: Any) -> str:
    """Name of a transform for people: its class's, a function's own."""
    if type(transform).__module__ == "builtins" and hasattr(transform, "__name__"):
        return str(transform.__name__)
    return type(transform).__name__


def translate(transform: Any) -> Program:
    """Return the program of a data set's transform.

    Raises:
        TransformNotTranslatable: some transform has no translation; the message says which, where and why.
    """
    chain = _Chain()
    transforms = list(flatten(transform))
    for position, one in enumerate(transforms):
        chain.position = position
        handler = _handlers().get(type(one))
        try:
            if handler is None:
                raise _Refused("it is not among the transforms that this version translates to DALI")
            handler(chain, one)
        except _Refused as refusal:
            raise TransformNotTranslatable(
                f"{name_of(one)} (transform {position + 1} of {len(transforms)}): {refusal}."
            ) from None
    return chain.program()


class _Chain:
    """The image's state while the chain is read: what kind it is, and which scaling has piled up."""

    def __init__(self) -> None:
        self.position = 0
        self.kind = "pil"  # then "bytes" (uint8 tensor) or "floats" (float32 tensor)
        self.steps: list[Step] = []
        self.size: tuple[int, int] | None = None
        self.factor = [1.0, 1.0, 1.0]
        self.offset = [0.0, 0.0, 0.0]
        self.normalised = False

    def spatial(self, one: Any) -> None:
        """Refuse what would give other pixels than the same step on an 8-bit image does."""
        if self.normalised:
            raise _Refused("it comes after Normalize; put Normalize last")
        interpolation = getattr(one, "interpolation", v1.InterpolationMode.BILINEAR)
        if interpolation not in (v1.InterpolationMode.BILINEAR, "bilinear", 2):
            shown = getattr(interpolation, "value", interpolation)
            raise _Refused(f"its interpolation is {shown}, only bilinear is translated")
        if self.kind != "pil" and getattr(one, "antialias", True) is not True:
            raise _Refused("it resizes a tensor without antialiasing; use antialias=True")

    def floats(self, factor: float) -> None:
        self.kind = "floats"
        self.factor = [value * factor for value in self.factor]

    def program(self) -> Program:
        if self.kind == "pil":
            raise TransformNotTranslatable(
                "Nothing in the transform makes a tensor of the image; end it with ToTensor() or PILToTensor()."
            )
        if self.size is None:
            raise TransformNotTranslatable(
                "No transform gives all images the same size; add RandomResizedCrop, CenterCrop or Resize((h, w))."
            )
        factor, offset = self.factor, self.offset
        return Program(
            tuple(self.steps),
            self.size,
            self.kind == "floats",
            (factor[0], factor[1], factor[2]),
            (offset[0], offset[1], offset[2]),
        )


def _pair(size: Any) -> tuple[int, int]:
    values = [size] if isinstance(size, int) else list(size)
    return int(values[0]), int(values[-1])


def _random_resized_crop(chain: _Chain, one: Any) -> None:
    chain.spatial(one)
    if min(one.scale) <= 0 or min(one.ratio) <= 0:
        raise _Refused("its scale and ratio must be positive")
    size = _pair(one.size)
    scale, ratio = (one.scale[0], one.scale[1]), (one.ratio[0], one.ratio[1])
    chain.steps.append(CropResize(chain.position, size, scale, ratio))
    chain.size = size


def _resize(chain: _Chain, one: Any) -> None:
    chain.spatial(one)
    size = None if one.size is None else (one.size,) if isinstance(one.size, int) else tuple(one.size)
    if size is not None and len(size) == 1 and one.max_size is not None and one.max_size <= size[0]:
        raise _Refused(f"its max_size {one.max_size} must be greater than its size {size[0]}")
    chain.steps.append(Scale(size, one.max_size))
    chain.size = (size[0], size[1]) if size is not None and len(size) == 2 else None


def _center_crop(chain: _Chain, one: Any) -> None:
    chain.spatial(one)
    chain.size = _pair(one.size)
    chain.steps.append(CropCenter(chain.size))


def _horizontal_flip(chain: _Chain, one: Any) -> None:
    chain.steps.append(Mirror(chain.position, float(one.p)))


def _to_tensor(chain: _Chain, _one: Any) -> None:
    if chain.kind != "pil":
        raise _Refused("it is applied to a tensor")
    chain.floats(1 / 255)


def _pil_to_tensor(chain: _Chain, _one: Any) -> None:
    if chain.kind != "pil":
        raise _Refused("it is applied to a tensor")
    chain.kind = "bytes"


def _to_image(chain: _Chain, _one: Any) -> None:
    if chain.kind == "pil":
        chain.kind = "bytes"


def _convert(chain: _Chain, dtype: Any, scale: bool) -> None:
    if dtype not in (torch.float32, torch.uint8):
        raise _Refused(f"only torch.float32 and torch.uint8 are translated, not {dtype}")
    if chain.kind == "bytes" and dtype is torch.float32:
        chain.floats(1 / 255 if scale else 1.0)
    elif chain.kind == "floats" and dtype is torch.uint8:
        raise _Refused("it turns floating-point pixels back into torch.uint8")


def _to_dtype(chain: _Chain, one: Any) -> None:
    if chain.kind != "pil":  # torchvision passes PIL images through
        _convert(chain, one.dtype, one.scale)


def _convert_image_dtype(chain: _Chain, one: Any) -> None:
    if chain.kind == "pil":
        raise _Refused("it is applied to a PIL image; put PILToTensor() before it")
    _convert(chain, one.dtype, True)


def _normalize(chain: _Chain, one: Any) -> None:
    if chain.kind != "floats":
        raise _Refused("it needs floating-point pixels; put ToTensor() or ToDtype(torch.float32) before it")
    mean, std = [float(x) for x in one.mean], [float(x) for x in one.std]
    if len(mean) not in (1, 3) or len(std) not in (1, 3) or not all(std):
        raise _Refused("it needs one or three means and as many standard deviations, none of them zero")
    mean, std = (mean * 3)[:3], (std * 3)[:3]
    chain.factor = [f / s for f, s in zip(chain.factor, std, strict=True)]
    chain.offset = [(o - m) / s for o, m, s in zip(chain.offset, mean, std, strict=True)]
    chain.normalised = True


@cache
def _handlers() -> dict[type, Callable[[_Chain, Any], None]]:
    table: dict[type, Callable[[_Chain, Any], None]] = {}
    by_name = {
        "RandomResizedCrop": _random_resized_crop,
        "RandomHorizontalFlip": _horizontal_flip,
        "Resize": _resize,
        "CenterCrop": _center_crop,
        "ToTensor": _to_tensor,
        "PILToTensor": _pil_to_tensor,
        "ToImage": _to_image,
        "ToDtype": _to_dtype,
        "ConvertImageDtype": _convert_image_dtype,
        "Normalize": _normalize,
    }
    for name, handler in by_name.items():
        for module in (v1, v2):
            if hasattr(module, name):
                table[getattr(module, name)] = handler
    return table


def translatable(transform: Any) -> bool:
    """Whether the class of one transform is in the table (its arguments may still be refused)."""
    return type(transform) in _handlers()
