"""Random erasing, which comes last and may fill with any number: it is done after the scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draws import Floats, UInt64s, uniforms
from ..params import ERASE_DRAWS, erase_box
from .injection import Cursor, Parameters
from .operation import Fed, Gate, Gates, Graph, Ints, float32, opened, where_open

_DRAWS = 1 + ERASE_DRAWS  # the first decides whether anything is erased


@dataclass(frozen=True)
class Erase:
    """RandomErasing where all `gates` are open, on [3, height, width] of any type.

    `scale` are shares of the area, `ratio` are height / width, `fill` is a value for each channel.
    """

    operation: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    fill: tuple[float, float, float]
    gates: Gates
    region = False

    def _boxes(self, keys: UInt64s, sizes: Ints) -> list[tuple[int, int, int, int]]:
        numbers = uniforms(keys, self.operation, _DRAWS)[:, 1:].tolist()
        pairs = zip(sizes.tolist(), numbers, strict=True)
        return [erase_box(h, w, draws, self.scale, self.ratio) for (h, w), draws in pairs]

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        boxes = np.array(self._boxes(keys, sizes), dtype=np.int64).reshape(-1, 4)
        boxes[~opened(self.gates, keys)] = 0
        return {f"start{k}": float32(boxes[:, :2]), f"shape{k}": float32(boxes[:, 2:])}, sizes

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        return where_open(self.gates, keys, self._boxes(keys, sizes))

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        from nvidia.dali import fn, types

        start, shape = graph.fed(f"start{k}", 1, types.FLOAT), graph.fed(f"shape{k}", 1, types.FLOAT)
        return fn.erase(image, anchor=start, shape=shape, axis_names="HW", fill_value=list(self.fill))


class EraseInjection(Parameters):
    """RandomErasing draws (top, left, height, width)."""

    _open: list[bool]
    _numbers: Floats

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self._gate = Gate(operation, 0.0, float(transform.p))
        self._value = filling(transform)
        self.transform.p = 1.0

    def begin(self, keys: UInt64s) -> None:
        self._open = self._gate.open(keys).tolist()
        self._numbers = uniforms(keys, self.operation, _DRAWS)[:, 1:]

    def __call__(self, image: Any) -> Any:
        if not self._open[self.cursor.row]:
            return image
        return super().__call__(image)

    def draw(self, row: int, height: int, width: int) -> Any:
        return erase_box(height, width, self._numbers[row].tolist(), self.transform.scale, self.transform.ratio)

    def v1(self, drawn: Any, *_args: Any, **_named: Any) -> Any:
        import torch

        return (*drawn, torch.tensor(self._value)[:, None, None])

    def v2(self, drawn: Any) -> dict[str, Any]:
        import torch

        return {**dict(zip("ijhw", drawn, strict=True)), "v": torch.tensor(self._value)[:, None, None]}


def filling(erasing: Any) -> list[float]:
    """RandomErasing's value: one number or one for each channel; v2 keeps a list."""
    value = erasing.value
    return [float(value)] if isinstance(value, (int, float)) else [float(channel) for channel in value]
