"""The user's random transforms with the plan's numbers: copies whose draws are given.

torch and torchvision are imported when used: a calibration (`calibration_process`) imports the operations without them.
"""

from __future__ import annotations

import copy
from typing import Any

from ..draws import UInt64s, stream_seeds
from .operation import Gate


class Cursor:
    """Which row of the batch is being computed."""

    row = 0


class Injection:
    """A copy of one of the user's random transforms, whose numbers are those of the sample's key."""

    drawn: Any

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        self.operation = operation
        self.drawn = None  # what the sample computed last drew; None where it drew nothing
        self.cursor = cursor
        self.transform = copy.copy(transform)

    def begin(self, keys: UInt64s) -> None:
        """Draw for a batch, uint64[n]."""
        raise NotImplementedError

    def __call__(self, image: Any) -> Any:
        """Transform the image of the cursor's row."""
        raise NotImplementedError


class Coin(Injection):
    """A transform with nothing to draw but whether it is applied, with probability `p`."""

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self._open: list[bool] = []
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        self._open = self._gate.open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        self.drawn = self._open[self.cursor.row]
        return self.transform(image) if self.drawn else image


class Parameters(Injection):
    """A transform that asks itself for parameters: v2 the instance's `make_params`, v1 its `get_params`."""

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from torchvision.transforms import v2

        super().__init__(operation, transform, cursor)
        if isinstance(self.transform, v2.Transform):
            self.transform.make_params = lambda _: self.v2(self.drawn)
        else:
            self.transform.get_params = lambda *args, **named: self.v1(self.drawn, *args, **named)

    def __call__(self, image: Any) -> Any:
        from torchvision.transforms import functional

        _, height, width = functional.get_dimensions(image)
        self.drawn = self.draw(self.cursor.row, height, width)
        return self.transform(image)

    def draw(self, row: int, height: int, width: int) -> Any:
        """Return what sample `row` draws for an image of this size."""
        raise NotImplementedError

    def v1(self, drawn: Any, *_args: Any, **_named: Any) -> Any:
        """What the first version's `get_params` returns."""
        return drawn

    def v2(self, drawn: Any) -> dict[str, Any]:
        """What the second version's `make_params` returns."""
        raise NotImplementedError


class Seeded(Injection):
    """Any other transform, itself and not a copy: called with the generators that it may draw from seeded.

    The caller restores them if it runs in the process of the training, see `random_streams`.
    """

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from ...random_streams import Streams

        self.operation, self.drawn, self.cursor, self.transform = operation, None, cursor, transform
        self._streams = Streams(transform)
        self._seeds: list[int] = []

    def begin(self, keys: UInt64s) -> None:
        self._seeds = stream_seeds(keys, self.operation)

    def __call__(self, image: Any) -> Any:
        self._streams.seed(self._seeds[self.cursor.row])
        return self.transform(image)
