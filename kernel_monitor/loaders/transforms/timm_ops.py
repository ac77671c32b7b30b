"""timm's known transforms: found once the user has imported timm, which is never imported here.

A chain of `timm.data.create_transform` consists of these, of torchvision's own, and of augmentation policies that are
left to themselves.
"""

from __future__ import annotations

import sys
from typing import Any

from .chain import Chain, Op, Refused, becomes, interpolation
from .ops.crop import FILTERS, ChosenBoxInjection, ChosenScale, RandomBox, Scale


def _crop_and_interpolation(chain: Chain, transform: Any) -> None:
    """timm's RandomResizedCrop, whose interpolation may be drawn from two."""
    chain.certain("size")
    if chain.kind != "pil":
        raise Refused("it is applied to a tensor")
    given = transform.interpolation
    names = [interpolation(choice) for choice in (given if isinstance(given, (tuple, list)) else [given])]
    if unlike := [name for name in names if name not in FILTERS]:
        raise Refused(f"its interpolation is {unlike[0]}, and Pillow's places differ from DALI's")
    if len(transform.size) != 2 or len(names) > 2 or min(transform.scale) <= 0 or min(transform.ratio) <= 0:
        raise Refused("its size must be (height, width), its scale and ratio positive")
    chain.pixels()
    height, width = transform.size
    chain.size = int(height), int(width)
    chain.steps.append(RandomBox(chain.operation, tuple(transform.scale), tuple(transform.ratio)))
    if len(names) == 2:
        chain.steps.append(ChosenScale(chain.operation, chain.size, (names[0], names[1])))
    else:
        chain.steps.append(Scale(chain.operation, chain.size, None, names[0]))


def _maybe_to_tensor(chain: Chain, _one: Any) -> None:
    chain.certain()
    if chain.kind == "pil":
        chain.floats(1 / 255)


TIMM: dict[str, Op] = {
    "RandomResizedCropAndInterpolation": Op(_crop_and_interpolation, ChosenBoxInjection, "box, hamming, nearest"),
    "MaybeToTensor": Op(_maybe_to_tensor, scales=True),
    "MaybePILToTensor": Op(becomes("tensor", "pil"), scales=True),
}
"""Those of `timm.data.transforms`; its other transforms are torchvision's own, or left to themselves."""


def known_of_timm() -> dict[type, Op]:
    """timm's classes, if the user has imported timm; not cached, as that may be still to come."""
    module = sys.modules.get("timm.data.transforms")
    return {getattr(module, name): op for name, op in TIMM.items() if hasattr(module, name)}
