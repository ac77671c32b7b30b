"""Images on their way from the process that decodes them to the worker that transforms them further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..transforms.inject import as_kind


class Decoded:
    """Some rows of a batch as 8-bit RGB images, in one piece of shared memory.

    Args:
        rest: position in the flat chain of transforms from which they are still to be transformed.
        kind: what the transform at `rest` expects; see `Program.rest_kind`.
        rows: of the planned batch; the others are opened where they are transformed.
        images: uint8[height, width, 3] for each of `rows`; copied.
    """

    def __init__(self, rest: int, kind: str, rows: Sequence[int], images: Sequence[torch.Tensor]) -> None:
        self.rest = rest
        self._kind = kind
        self._places: dict[int, tuple[int, torch.Size]] = {}
        length = 0
        for row, image in zip(rows, images, strict=True):
            self._places[row] = length, image.shape
            length += image.numel()
        # Shared from the start: the queue would copy it into shared memory otherwise, once more.
        storage = torch.UntypedStorage._new_shared(max(1, length))
        self._pixels = torch.empty(0, dtype=torch.uint8).set_(storage)
        for image, (first, shape) in zip(images, self._places.values(), strict=True):
            self._pixels[first : first + shape.numel()].view(shape).copy_(image)

    def start(self, row: int) -> int:
        """Position in the flat chain of transforms from which the image of a row is to be transformed."""
        return self.rest if row in self._places else 0

    def image(self, row: int) -> Any:
        """The image of a row in memory of its own, as the next transform expects it; None where there is none."""
        if row not in self._places:
            return None
        first, shape = self._places[row]
        return as_kind(self._kind, self._pixels[first : first + shape.numel()].view(shape).clone())
