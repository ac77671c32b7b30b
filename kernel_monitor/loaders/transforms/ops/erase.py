"""Random erasing, which comes last and may fill with any number: it is done after the scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draws import Floats, Ints, UInt64s, uniforms
from ..params import ERASE_DRAWS, erase_box
from .operation import Cursor, Fed, Gate, Gates, Graph, Parameters, Step, float32, where_open

_DRAWS = 1 + ERASE_DRAWS  # the first decides whether anything is erased


@dataclass(frozen=True)
class Erase(Step):
    """RandomErasing where all `gates` are open, on [3, height, width] of any type.

    `scale` are shares of the area, `ratio` are height / width, `fill` is a value for each channel.
    """

    scale: tuple[float, ...]
    ratio: tuple[float, ...]
    fill: tuple[float, ...]
    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        boxes = np.array([box or (0, 0, 0, 0) for box in self.drawn(keys, sizes)]).reshape(-1, 4)
        return {f"start{k}": float32(boxes[:, :2]), f"shape{k}": float32(boxes[:, 2:])}, sizes

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        numbers = uniforms(keys, self.operation, _DRAWS)[:, 1:].tolist()
        pairs = zip(sizes.tolist(), numbers, strict=True)
        boxes = [erase_box(h, w, draws, self.scale, self.ratio) for (h, w), draws in pairs]
        return where_open(self.gates, keys, boxes)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        start, shape = graph.fed(f"start{k}", 1, "FLOAT"), graph.fed(f"shape{k}", 1, "FLOAT")
        return graph.fn.erase(image, anchor=start, shape=shape, axis_names="HW", fill_value=list(self.fill))


class EraseInjection(Parameters):
    """RandomErasing draws (top, left, height, width)."""

    draws = _DRAWS
    names = ("i", "j", "h", "w", "v")
    _open: list[bool]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        super().begin(keys)
        self._open = self._gate.open(keys).tolist()

    def __call__(self, image: Any) -> Any:
        return super().__call__(image) if self._open[self.cursor.row] else image

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return erase_box(height, width, numbers[1:].tolist(), self.transform.scale, self.transform.ratio)

    def v1(self) -> Any:
        import torch

        return (*self.drawn, torch.tensor(filling(self.transform))[:, None, None])


def filling(erasing: Any) -> list[float]:
    """RandomErasing's value: one number or one for each channel; v2 keeps a list."""
    value = erasing.value
    return [float(value)] if isinstance(value, (int, float)) else [float(channel) for channel in value]
