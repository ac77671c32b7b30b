"""Gaussian blur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draws import UInt64s, uniforms
from .injection import Parameters
from .operation import Fed, Gates, Graph, Ints, between, float32, opened, where_open

_NONE = 1e-2  # pixels: a window whose neighbours weigh exp(-5000), which is 0


@dataclass(frozen=True)
class Blur:
    """GaussianBlur with a window of `kernel` (width, height) pixels and a sigma between `low` and `high` pixels."""

    operation: int
    kernel: tuple[int, int]
    low: float
    high: float
    gates: Gates
    region = False

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        sigma = np.array(between(uniforms(keys, self.operation, 1)[:, 0], self.low, self.high))
        return {f"sigma{k}": float32(np.where(opened(self.gates, keys), sigma, _NONE))}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return where_open(self.gates, keys, between(uniforms(keys, self.operation, 1)[:, 0], self.low, self.high))

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        from nvidia.dali import fn, types

        return fn.gaussian_blur(
            image, window_size=list(self.kernel[::-1]), sigma=graph.fed(f"sigma{k}", 0, types.FLOAT)
        )


class BlurInjection(Parameters):
    """GaussianBlur draws a sigma, pixels."""

    _sigmas: list[float]

    def begin(self, keys: UInt64s) -> None:
        self._sigmas = between(uniforms(keys, self.operation, 1)[:, 0], *self.transform.sigma)

    def draw(self, row: int, _height: int, _width: int) -> Any:
        return self._sigmas[row]

    def v2(self, drawn: Any) -> dict[str, Any]:
        return {"sigma": [drawn, drawn]}
