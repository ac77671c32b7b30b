"""From torchvision's transforms (v1 and v2) to a `Program`: as much as DALI can do, the rest left to torchvision."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain as joined
from typing import Any

from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2

from ...errors import TransformNotTranslatable
from .catalogue import find
from .chain import APPLY, CHOICE, Chain, Refused, branches, flatten, gates_of, name_of, numbered, plain
from .image_by_name import takes_name
from .ops.operation import Gate
from .program import Program

_OF_ARRAYS = ("ToTensor", "ToPILImage", "ToImage", "Identity")
"""Torchvision's, that take NumPy arrays."""


def translate(transform: Any, kind: str = "pil") -> Program:
    """Return the program of a data set's transform, which is given images of this kind (see `Chain`).

    Where a transform cannot be done by DALI, the program ends before it (or, where it computes on floating-point
    pixels, before they became so), and `rest` is the position from which the user's own transforms go on.

    Raises:
        TransformNotTranslatable: a transform takes more than one image; the message names it and its position.
    """
    transforms = list(flatten(transform))
    chain = cut = Chain(kind)
    rest = 0
    reason: str | None = None
    for position, (operation, transform) in enumerate(numbered(transforms)):
        label = f"{name_of(transform)} (transform {position + 1} of {len(transforms)})"
        if type(transform) in (v2.MixUp, v2.CutMix):
            raise TransformNotTranslatable(f"{label}: it mixes whole batches; apply it in the collate function.")
        if type(transform) is StandardTransform:
            alone = "use transform= for the image alone"
            raise TransformNotTranslatable(f"{label}: it takes an image and its target; {alone}.")
        if reason is not None:
            continue
        attempt = chain.copy()
        try:
            read(attempt, transform, operation)
        except Refused as refusal:
            reason = f"{label}: {refusal}."
            continue
        chain = attempt
        if chain.whole and not chain.tail:
            cut, rest = chain, position + 1
    if reason is None:
        try:
            return chain.program()
        except Refused as refusal:
            reason = str(refusal)
    return cut.head(rest, reason)


def read(chain: Chain, transform: Any, operation: int) -> None:
    """Add one transform, which has number `operation`, to a chain; `Refused` leaves the chain half read."""
    inside = branches(transform, operation)
    if inside and type(transform) in APPLY:
        _read_gated(chain, joined.from_iterable(inside), Gate(operation, 0.0, transform.p))
    elif inside and type(transform) in CHOICE:
        for branch, gate in zip(inside, gates_of(transform, operation), strict=True):
            _read_gated(chain, branch, gate)
    elif inside:
        raise Refused("the order of its transforms is drawn for each image")
    else:
        op = find(transform)
        if op is None and not plain(transform):
            raise Refused("it has hooks or a forward() of its own")
        if op is None:
            raise Refused("it is not among the transforms that this version translates to DALI")
        if "array" in chain.kind and not takes_name(transform) and type(transform).__name__ not in _OF_ARRAYS:
            raise Refused("it is given a NumPy array")
        chain.operation = operation
        op.read(chain, transform)


def _read_gated(chain: Chain, transforms: Iterable[tuple[int, Any]], gate: Gate) -> None:
    outside, chain.gates = chain.gates, (*chain.gates, gate)
    for operation, inner in transforms:
        read(chain, inner, operation)
    chain.gates = outside


def scaling(transforms: list[Any], kind: str = "pil") -> list[float]:
    """What a difference of one pixel value (0 to 255) is in the result of flat transforms, per channel."""
    chain = Chain(kind)
    for transform in transforms:
        op = find(transform)
        if op is not None and op.scales:
            with suppress(Refused):  # as it stands in the chain: torchvision would fail there as well
                op.read(chain, transform)
    return chain.factor


def share(transform: Any, program: Program, where: str) -> str | None:
    """What DALI does of a transform and what remains, a sentence; None where nothing remains.

    `where` is where that runs, as in "in the loader's workers".
    """
    if program.rest is None:
        return None
    names = [name_of(transform) for transform in flatten(transform)]
    done, left = names[: program.rest], names[program.rest :]
    does = f"decodes and does {', '.join(done)}" if done else "only decodes"
    if not left:
        return f"DALI {does}; what makes a batch of it runs {where}."
    more = f" and {len(left) - 1} more run" if len(left) > 1 else " runs"
    return f"DALI {does}; {left[0]}{more} {where}."
