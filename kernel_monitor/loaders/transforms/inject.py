"""Copies of the user's own transform objects that take their random numbers from the plan.

A copy of a known random transform (see `translate.OPS`) gets its parameters from the plan. Any other callable draws
from the default generators of torch, Python and NumPy, which are seeded for it from the sample's key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from ...text import cause, log_outside
from .chain import APPLY, CHOICE, gates_of
from .operation import Cursor, Gate, Injection, Seeded
from .params import UInt64s, uniforms
from .translate import Link, links

log = logging.getLogger(__name__)


class Injected:
    """A transform whose result is a function of the sample's key and the image alone.

    Usage: `begin(keys)` for a batch, then `run(image, row)` for each of its samples.

    Args:
        transform: the user's.
        taken_apart: its `links`, where they are known already.

    Attributes:
        failure: why the transform could not be copied, and runs as it is, seeded; None if it was copied.
    """

    def __init__(self, transform: Any, taken_apart: list[Link] | None = None) -> None:
        self.failure: str | None = None
        self._cursor = Cursor()
        self._injections: list[Injection] = []
        try:
            self._chain = [self._copy(link) for link in (links(transform) if taken_apart is None else taken_apart)]
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything
            log_outside(log, "%s cannot be examined", type(transform).__name__, level=logging.INFO)
            self.failure = cause(error)
            self._injections = [Seeded(0, transform, self._cursor)]
            self._chain = [*self._injections]

    def begin(self, keys: UInt64s) -> None:
        """Draw the numbers of a batch; `keys` is uint64[n], the samples' keys."""
        for injection in self._injections:
            injection.begin(keys)

    def run(self, image: Any, row: int, start: int = 0) -> Any:
        """Transform an image as sample `row` of the batch begun last, from position `start` of the flat chain on."""
        self._cursor.row = row
        for injection in self._injections:
            injection.drawn = None
        for step in self._chain[start:]:
            image = step(image)
        return image

    @property
    def unknown(self) -> bool:
        """Whether some transform is not known, and may draw from any generator."""
        return any(isinstance(injection, Seeded) for injection in self._injections)

    def drawn(self) -> dict[int, Any]:
        """Return the last sample's draws by operation, without those of transforms that were not applied."""
        return {injection.operation: injection.drawn for injection in self._injections if injection.drawn is not None}

    def _copy(self, link: Link) -> Callable[[Any], Any]:
        operation, transform, op = link.operation, link.transform, link.op
        if op is not None and op.inject is None:
            known: Callable[[Any], Any] = transform
            return known
        injection: Injection
        if link.inside:
            injection = container = _Container(operation, transform, self._cursor)
            container.branches = [[self._copy(inner) for inner in branch] for branch in link.inside]
        else:
            inject = Seeded if op is None or op.inject is None else op.inject
            injection = inject(operation, transform, self._cursor)
        self._injections.append(injection)
        return injection


class _Container(Injection):
    """A container whose transforms are chosen and ordered by the plan's numbers. Its draws are not reported."""

    branches: list[list[Callable[[Any], Any]]]  # copies of what is inside
    _chosen: list[list[int]]  # by row, the branches to apply

    def begin(self, keys: UInt64s) -> None:
        count = len(self.branches)
        if type(self.transform) in APPLY:  # all or none
            applied = Gate(self.operation, 0.0, float(self.transform.p)).open(keys).tolist()
            self._chosen = [list(range(count)) if is_open else [] for is_open in applied]
        elif type(self.transform) in CHOICE:  # a single one
            opened = [gate.open(keys) for gate in gates_of(self.transform, self.operation)]
            self._chosen = np.argmax(opened, axis=0)[:, None].tolist()
        else:  # all, in a drawn order
            numbers = uniforms(keys, self.operation, count)
            self._chosen = np.argsort(numbers, axis=1, kind="stable").tolist()

    def __call__(self, image: Any) -> Any:
        for number in self._chosen[self.cursor.row]:
            for step in self.branches[number]:
                image = step(image)
        return image


def as_kind(kind: str, image: torch.Tensor) -> Any:
    """Return a decoded image, uint8[height, width, 3], as an image of that `kind`; see `Program.rest_kind`."""
    if kind == "pil":
        return Image.fromarray(image.numpy())
    if kind == "array":
        return image.numpy().copy()
    planes = image.permute(2, 0, 1)
    return planes if kind == "tensor" else tv_tensors.Image(planes)
