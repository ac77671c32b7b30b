"""Translation of a chain of transforms to a `Program`: as much as DALI can do; the rest stays with torchvision."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain as joined
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from ...errors import TransformNotTranslatable
from ...text import cause, log_outside
from . import albumentations, colour, geometry
from .chain import (
    APPLY,
    CHOICE,
    Chain,
    Op,
    Refused,
    branches,
    flatten,
    gates_of,
    interpolation,
    name_of,
    numbered,
    plain,
    takes_name,
)
from .operation import Coin, Cursor, Erase, EraseInjection, Gate, Injection, Seeded, filling
from .program import Program

log = logging.getLogger(__name__)

# ---- The known transforms: functions that read their settings and add DALI's steps.

_TENSOR = "it is applied to a tensor"


def _pair(size: Any) -> tuple[int, int]:
    values = [size] if isinstance(size, int) else list(size)
    return int(values[0]), int(values[-1])


def _filter(chain: Chain, given: Any, antialias: Any = True) -> str:
    """Return the interpolation of a resize; raise `Refused` if DALI's gives other pixels."""
    chain.certain("size")
    name = interpolation(given)
    if chain.kind == "pil":
        if name not in geometry.FILTERS:
            raise Refused(f"its interpolation is {name}, and Pillow's places differ from DALI's")
    elif name in geometry.NEAREST:
        chain.spatial()
        return name
    elif name == "lanczos" or (name == "bicubic" and not chain.whole) or name not in geometry.FILTERS:
        raise Refused(f"its interpolation is {name}, on {'floats' if not chain.whole else 'a tensor'}")
    elif antialias is not True:
        raise Refused("it resizes a tensor without antialiasing; use antialias=True")
    chain.pixels()
    return name


def _random_box(chain: Chain, transform: Any) -> None:
    if min(transform.scale) <= 0 or min(transform.ratio) <= 0:
        raise Refused("its scale and ratio must be positive")
    chain.size = _pair(transform.size)
    chain.steps.append(geometry.RandomBox(chain.operation, tuple(transform.scale), tuple(transform.ratio)))


def _random_resized_crop(chain: Chain, transform: Any) -> None:
    name = _filter(chain, transform.interpolation, transform.antialias)
    _random_box(chain, transform)
    chain.steps.append(geometry.Scale(chain.operation, chain.size, None, name))


def _timm_crop(chain: Chain, transform: Any) -> None:
    """Read timm's RandomResizedCrop, whose interpolation may be drawn from two."""
    if chain.kind != "pil":
        raise Refused(_TENSOR)
    given = transform.interpolation
    names = [_filter(chain, choice) for choice in (given if isinstance(given, (tuple, list)) else [given])]
    if len(transform.size) != 2 or len(names) > 2:
        raise Refused("its size must be (height, width), its interpolation one of two")
    _random_box(chain, transform)
    chain.steps.append(geometry.Scale(chain.operation, chain.size, None, names[0], (*names, None)[1]))


def _resize(chain: Chain, transform: Any) -> None:
    name = _filter(chain, transform.interpolation, transform.antialias)
    size, most = transform.size, transform.max_size
    if size is not None:
        size = (size,) if isinstance(size, int) else tuple(size)
        if len(size) == 1 and most is not None and most <= size[0]:
            raise Refused(f"its max_size {most} must be greater than its size {size[0]}")
    chain.steps.append(geometry.Scale(chain.operation, size, most, name))
    chain.size = size if size is not None and len(size) == 2 else None


def _center_crop(chain: Chain, transform: Any) -> None:
    _window(chain)
    chain.size = _pair(transform.size)
    chain.steps.append(geometry.CropCenter(chain.operation, chain.size))


def _window(chain: Chain) -> None:
    chain.spatial()
    chain.certain("size")
    if chain.normalised:
        raise Refused("it comes after Normalize")  # its fill colour would be normalised, too


def _padding(chain: Chain, transform: Any, sides: geometry.Sides) -> geometry.Colour:
    """Return the fill colour of a padding."""
    if transform.padding_mode != "constant":
        raise Refused(f"its padding_mode is {transform.padding_mode}")
    if min(sides) < 0:
        raise Refused("its padding is negative")
    return chain.fill(transform.fill)


def _random_crop(chain: Chain, transform: Any) -> None:
    _window(chain)
    sides, if_needed = geometry.padding_of(transform), bool(transform.pad_if_needed)
    fill = _padding(chain, transform, sides) if if_needed or any(sides) else geometry.BLACK
    chain.size = _pair(transform.size)
    chain.steps.append(geometry.RandomWindow(chain.operation, chain.size, sides, if_needed, fill))


def _pad(chain: Chain, transform: Any) -> None:
    _window(chain)
    sides = geometry.sides_of(transform.padding)
    chain.steps.append(geometry.Padded(chain.operation, sides, _padding(chain, transform, sides)))
    if chain.size is not None:
        chain.size = chain.size[0] + sides[1] + sides[3], chain.size[1] + sides[0] + sides[2]


def _coin(chain: Chain, transform: Any) -> tuple[Gate, ...]:
    return (*chain.gates, Gate(chain.operation, 0.0, float(transform.p)))


def _flip(chain: Chain, transform: Any, vertical: bool) -> None:
    chain.spatial()
    chain.steps.append(geometry.Mirror(chain.operation, _coin(chain, transform), vertical))


def _warp(chain: Chain, transform: Any, rotation: bool) -> None:
    if rotation and transform.expand:
        raise Refused("it expands the image")
    name = interpolation(transform.interpolation)
    if name != "nearest":
        raise Refused(f"its interpolation is {name}, whose borders DALI does otherwise")
    if chain.normalised:
        raise Refused("it comes after Normalize")
    chain.spatial()
    fill = chain.fill(transform.fill)
    if len(set(fill)) > 1:
        raise Refused("its fill has a value for each channel")
    center = None if transform.center is None else (float(transform.center[0]), float(transform.center[1]))
    chain.steps.append(
        geometry.Warp(chain.operation, geometry.ranges_of(transform), rotation, center, fill[0], chain.gates)
    )


def _gray(chain: Chain, transform: Any, coin: bool) -> None:
    if not coin and transform.num_output_channels != 3:
        raise Refused("it leaves one channel")
    chain.pixels()
    gates = _coin(chain, transform) if coin else chain.gates
    chain.steps.append(colour.Gray(chain.operation, gates, chain.cut, coin))


def _invert(chain: Chain, transform: Any) -> None:
    if not chain.whole:  # there torchvision subtracts from 1, whatever the scale
        raise Refused("it computes on floating-point pixels; put it before ToTensor")
    chain.pixels()
    chain.steps.append(colour.Invert(chain.operation, _coin(chain, transform)))


def _jitter(chain: Chain, transform: Any) -> None:
    if transform.hue is not None:
        raise Refused("it changes the hue, which DALI does in another colour space")
    ranges = transform.brightness, transform.contrast, transform.saturation
    if ranges == (None, None, None):  # timm's color_jitter=0
        return
    if not chain.whole:
        raise Refused("it computes on floating-point pixels; put it before ToTensor")
    chain.pixels()
    chain.steps.append(colour.Jitter(chain.operation, *ranges, chain.cut, chain.gates))


def _blur(chain: Chain, transform: Any) -> None:
    chain.pixels()
    low, high = float(transform.sigma[0]), float(transform.sigma[-1])
    chain.steps.append(colour.Blur(chain.operation, _pair(transform.kernel_size), low, high, chain.gates))


def _erasing(chain: Chain, transform: Any) -> None:
    if chain.kind == "pil":
        raise Refused("it is applied to a PIL image")
    if _noisy(transform):
        raise Refused("it fills with random values")
    values = filling(transform)
    values = values * 3 if len(values) == 1 else values
    if len(values) != 3:
        raise Refused(f"its value has {len(values)} channels")
    if chain.whole and any(int(value) != value or not 0 <= value <= 255 for value in values):
        raise Refused(f"it fills 8-bit pixels with {transform.value}")
    if min(transform.ratio) <= 0:
        raise Refused("its ratio must be positive")
    scale, ratio = tuple(transform.scale), tuple(transform.ratio)
    chain.tail.append(Erase(chain.operation, scale, ratio, tuple(values), _coin(chain, transform)))


def _noisy(transform: Any) -> bool:
    return transform.value is None or isinstance(transform.value, str)


def _erase_injection(operation: int, transform: Any, cursor: Cursor) -> Injection:
    kind = Seeded if _noisy(transform) else EraseInjection
    return kind(operation, transform, cursor)


def _becomes(kind: str, *before: str, others: str | None = None) -> Callable[[Chain, Any], None]:
    """Return a function that reads a transform which changes images of the kinds `before` to `kind`.

    `others` is the reason to refuse images of other kinds; None if the transform leaves them as they are.
    """

    def read(chain: Chain, _transform: Any) -> None:
        chain.certain()
        if chain.kind not in before:
            if others is not None:
                raise Refused(others)
        elif kind == "floats":
            chain.floats(1 / 255)
        else:
            chain.kind = kind

    return read


def _convert(chain: Chain, dtype: Any, scale: bool) -> None:
    chain.certain()
    if dtype not in (torch.float32, torch.uint8):
        raise Refused(f"it converts to {dtype}" if isinstance(dtype, torch.dtype) else "it has a type for each kind")
    if chain.whole and dtype is torch.float32:
        chain.floats(1 / 255 if scale else 1.0)
    elif not chain.whole and dtype is torch.uint8:
        raise Refused("it turns floating-point pixels back into torch.uint8")


def _to_dtype(chain: Chain, transform: Any) -> None:
    if chain.kind != "pil":  # torchvision passes PIL images through
        _convert(chain, transform.dtype, transform.scale)


def _convert_image_dtype(chain: Chain, transform: Any) -> None:
    if chain.kind == "pil":
        raise Refused("it is applied to a PIL image; put PILToTensor() before it")
    _convert(chain, transform.dtype, True)


def _normalize(chain: Chain, transform: Any) -> None:
    chain.certain()
    if chain.whole:
        raise Refused("it needs floating-point pixels; put ToTensor() or ToDtype(torch.float32) before it")
    mean, std = [float(x) for x in transform.mean], [float(x) for x in transform.std]
    if len(mean) not in (1, 3) or len(std) not in (1, 3) or not all(std):
        raise Refused("it needs one or three means and as many standard deviations, none of them zero")
    mean, std = (mean * 3)[:3], (std * 3)[:3]
    chain.scale([1 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)])
    chain.normalised = True


def _to_pil(chain: Chain, transform: Any) -> None:
    chain.certain()
    if transform.mode not in (None, "RGB"):
        raise Refused(f"its mode is {transform.mode}")
    if chain.kind == "pil" or not chain.whole:
        raise Refused("it is given no 8-bit array or tensor")
    chain.kind = "pil"


def _preset(chain: Chain, transform: Any) -> None:
    """Read the result of `weights.transforms()` of a classification model: a resize, a crop and a scaling."""
    _resize(chain, v1.Resize(transform.resize_size, transform.interpolation, antialias=transform.antialias))
    _center_crop(chain, v1.CenterCrop(transform.crop_size))
    if chain.kind == "pil":
        chain.kind = "tensor"
    _convert(chain, torch.float32, True)
    _normalize(chain, v1.Normalize(transform.mean, transform.std))


OPS: dict[str, Op] = {
    "RandomResizedCrop": Op(_random_resized_crop, geometry.RandomBoxInjection),
    "Resize": Op(_resize),
    "CenterCrop": Op(_center_crop),
    "RandomCrop": Op(_random_crop, geometry.RandomWindowInjection),
    "Pad": Op(_pad),
    "RandomHorizontalFlip": Op(partial(_flip, vertical=False), Coin),
    "RandomVerticalFlip": Op(partial(_flip, vertical=True), Coin),
    "RandomRotation": Op(partial(_warp, rotation=True), geometry.RotationInjection),
    "RandomAffine": Op(partial(_warp, rotation=False), geometry.AffineInjection),
    "Grayscale": Op(partial(_gray, coin=False)),
    "RandomGrayscale": Op(partial(_gray, coin=True), Coin),
    "RandomInvert": Op(_invert, Coin),
    "ColorJitter": Op(_jitter, colour.JitterInjection),
    "GaussianBlur": Op(_blur, colour.BlurInjection),
    "RandomErasing": Op(_erasing, _erase_injection),
    "Identity": Op(lambda _chain, _one: None),
    "ToTensor": Op(_becomes("floats", "pil", "array", others=_TENSOR), scales=True),
    "ToPILImage": Op(_to_pil),
    "PILToTensor": Op(_becomes("tensor", "pil", others=_TENSOR), scales=True),
    "ToImage": Op(_becomes("image", "pil", "tensor", "array"), scales=True),
    "ToPureTensor": Op(_becomes("tensor", "image"), scales=True),
    "ToDtype": Op(_to_dtype, scales=True),
    "ConvertImageDtype": Op(_convert_image_dtype, scales=True),
    "Normalize": Op(_normalize, scales=True),
    "ImageClassification": Op(_preset, scales=True),
}

TIMM: dict[str, Op] = {
    "RandomResizedCropAndInterpolation": Op(_timm_crop, geometry.ChosenBoxInjection),
    "MaybeToTensor": Op(_becomes("floats", "pil"), scales=True),
    "MaybePILToTensor": Op(_becomes("tensor", "pil"), scales=True),
}
"""Entries of `timm.data.transforms`; its other transforms are torchvision's own, or are not translated."""


@cache
def _by_class() -> dict[type, Op]:
    known = {getattr(m, name): op for name, op in OPS.items() for m in (v1, v2) if hasattr(m, name)}
    return {**known, ImageClassification: OPS["ImageClassification"], torch.nn.Identity: OPS["Identity"]}


def _of_timm(kind: type) -> Op | None:
    """Return the entry of a class of timm, which is not imported here: the user may import it at any time."""
    module = sys.modules.get("timm.data.transforms")
    return TIMM.get(kind.__name__) if getattr(module, kind.__name__, None) is kind else None


def find(transform: Any) -> Op | None:
    """Return the entry of a transform's exact class; None without one, and for a module with hooks."""
    op = _by_class().get(type(transform)) or _of_timm(type(transform)) or albumentations.find(transform)
    return op if op is not None and plain(transform) else None


_OF_ARRAYS = ("ToTensor", "ToPILImage", "ToImage", "Identity")
"""Torchvision's transforms that accept NumPy arrays."""


@dataclass(frozen=True)
class Link:
    """One transform of a flat chain."""

    operation: int  # its number
    transform: Any
    op: Op | None  # its entry; None where there is none
    inside: list[list[Link]]  # the branches of a container, see `chain.branches`; empty for all others


def links(transform: Any) -> list[Link]:
    """Take a transform apart: return its flat chain, each transform with its operation's number and its entry."""
    return _links(numbered(list(flatten(transform))))


def _links(steps: Iterable[tuple[int, Any]]) -> list[Link]:
    return [
        Link(operation, step, find(step), [_links(branch) for branch in branches(step, operation)])
        for operation, step in steps
    ]


@dataclass(frozen=True)
class Translation:
    """A data set's transform, taken apart, and its program or the reason why there is none."""

    links: list[Link] | None = None  # of its flat chain; None where it could not be taken apart
    program: Program | None = None
    refusal: str | None = None  # why there is no program, a sentence; None where there is one, or a failure
    failure: str | None = None  # why it cannot be examined, from `text.cause`


def examine(transform: Any, kind: str) -> Translation:
    """Return what is to be known of a data set's transform, which is given images of this kind (see `Chain`)."""
    found = Translation()
    try:
        found = replace(found, links=links(transform))
        return replace(found, program=_program(found.links or [], kind))
    except TransformNotTranslatable as error:
        return replace(found, refusal=str(error))
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        log_outside(log, "the transform cannot be examined", level=logging.INFO)
        return replace(found, failure=cause(error))


def translate(transform: Any, kind: str = "pil") -> Program:
    """Return the program of a data set's transform for input images of this kind (see `Chain`).

    Raises:
        TransformNotTranslatable: see `_program`.
    """
    return _program(links(transform), kind)


def _program(chain_links: list[Link], kind: str) -> Program:
    """Return the program of the links of a chain for input images of this kind (see `Chain`).

    If DALI cannot do a transform, the program ends before it (or, if it computes on floating-point pixels, before the
    conversion to these), and `rest` is the position from which the user's own transforms go on.

    Raises:
        TransformNotTranslatable: a transform takes more than one image; the message names it and its position.
    """
    names = tuple(name_of(link.transform) for link in chain_links)
    chain = cut = Chain(kind)
    rest = 0
    reason: str | None = None
    for position, link in enumerate(chain_links):
        transform = link.transform
        label = f"{names[position]} (transform {position + 1} of {len(names)})"
        if type(transform) in (v2.MixUp, v2.CutMix):
            raise TransformNotTranslatable(f"{label}: it mixes whole batches; apply it in the collate function.")
        if type(transform) is StandardTransform:
            alone = "use transform= for the image alone"
            raise TransformNotTranslatable(f"{label}: it takes an image and its target; {alone}.")
        if reason is not None:
            continue
        attempt = chain.copy()
        try:
            _read(attempt, link)
        except Refused as refusal:
            reason = f"{label}: {refusal}."
            continue
        chain = attempt
        if chain.whole and not chain.tail:
            cut, rest = chain, position + 1
    if reason is None:
        try:
            return replace(chain.program(), names=names)
        except Refused as refusal:
            reason = str(refusal)
    return replace(cut.head(rest, reason), names=names)


def _read(chain: Chain, link: Link) -> None:
    """Add one transform to a chain. If it raises `Refused`, the chain is incomplete."""
    transform, inside, operation = link.transform, link.inside, link.operation
    if inside and type(transform) in APPLY:
        _read_gated(chain, joined.from_iterable(inside), Gate(operation, 0.0, transform.p))
    elif inside and type(transform) in CHOICE:
        for branch, gate in zip(inside, gates_of(transform, operation), strict=True):
            _read_gated(chain, branch, gate)
    elif inside:
        raise Refused("the order of its transforms is drawn for each image")
    else:
        op = link.op
        if op is None and not plain(transform):
            raise Refused("it has hooks or a forward() of its own")
        if op is None:
            raise Refused("it is not among the transforms that this version translates to DALI")
        if "array" in chain.kind and not takes_name(transform) and type(transform).__name__ not in _OF_ARRAYS:
            raise Refused("it is given a NumPy array")
        chain.operation = operation
        op.read(chain, transform)


def _read_gated(chain: Chain, inside: Iterable[Link], gate: Gate) -> None:
    outside, chain.gates = chain.gates, (*chain.gates, gate)
    for link in inside:
        _read(chain, link)
    chain.gates = outside


def scaling(transforms: list[Any], kind: str = "pil") -> list[float]:
    """Return, per channel, the factor from a pixel value (0 to 255) to the result of flat transforms."""
    chain = Chain(kind)
    for transform in transforms:
        op = find(transform)
        if op is not None and op.scales:
            with suppress(Refused):  # torchvision would fail at the same transform
                op.read(chain, transform)
    return chain.factor
