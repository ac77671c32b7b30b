"""The user's random transforms with the plan's numbers: copies whose draws are given.

torch and torchvision are imported when used: a calibration (`calibration_process`) imports the operations without them.
"""

from __future__ import annotations

import copy
from typing import Any

from ..draws import Floats, UInt64s, stream_seeds, uniforms
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

    _open: list[bool]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        self._open = self._gate.open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        self.drawn = self._open[self.cursor.row]
        return self.transform(image) if self.drawn else image


class Parameters(Injection):
    """A transform that asks itself for parameters: v2 the instance's `make_params`, v1 its `get_params`."""

    draws = 1  # uniform numbers that a sample takes
    names: tuple[str, ...] = ()  # of the parameters, in v2
    _numbers: Floats  # [n, draws], of the batch begun last

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from torchvision.transforms import v2

        super().__init__(operation, transform, cursor)
        if isinstance(self.transform, v2.Transform):
            self.transform.make_params = lambda _: self.v2()
        else:
            self.transform.get_params = lambda *_args, **_named: self.v1()

    def begin(self, keys: UInt64s) -> None:
        self._numbers = uniforms(keys, self.operation, self.draws)

    def __call__(self, image: Any) -> Any:
        from torchvision.transforms import functional

        _, height, width = functional.get_dimensions(image)
        self.drawn = self.draw(self._numbers[self.cursor.row], height, width)
        return self.transform(image)

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        """Return what a sample draws for an image of this size; its `numbers` are float64[draws]."""
        raise NotImplementedError

    def v1(self) -> Any:
        """What the first version's `get_params` returns."""
        return self.drawn

    def v2(self) -> dict[str, Any]:
        """What the second version's `make_params` returns."""
        return dict(zip(self.names, self.v1(), strict=True))


class Seeded(Injection):
    """Any other transform, itself and not a copy: called with the generators that it may draw from seeded.

    The caller restores them if it runs in the process of the training, see `random_streams`.
    """

    _seeds: list[int]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        from ...random_streams import Streams

        self.operation, self.drawn, self.cursor, self.transform = operation, None, cursor, transform
        self._streams = Streams(transform)

    def begin(self, keys: UInt64s) -> None:
        self._seeds = stream_seeds(keys, self.operation)

    def __call__(self, image: Any) -> Any:
        self._streams.seed(self._seeds[self.cursor.row])
        return self.transform(image)
