"""Gaussian blur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..draws import Floats, Ints, UInt64s, uniforms
from .injection import Parameters
from .operation import Fed, Gates, Graph, Step, between, float32, where_open

_NONE = 1e-2  # pixels: a window whose neighbours weigh exp(-5000), which is 0


@dataclass(frozen=True)
class Blur(Step):
    """GaussianBlur with a window of `kernel` (width, height) pixels and a sigma between `low` and `high` pixels."""

    kernel: tuple[int, int]
    low: float
    high: float
    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        sigmas = [_NONE if sigma is None else sigma for sigma in self.drawn(keys, sizes)]
        return {f"sigma{k}": float32(sigmas)}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return where_open(self.gates, keys, between(uniforms(keys, self.operation, 1)[:, 0], self.low, self.high))

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        sigma = graph.fed(f"sigma{k}", 0, "FLOAT")
        return graph.fn.gaussian_blur(image, window_size=list(self.kernel[::-1]), sigma=sigma)


class BlurInjection(Parameters):
    """GaussianBlur draws a sigma, pixels."""

    def draw(self, numbers: Floats, _height: int, _width: int) -> Any:
        return between(numbers, *self.transform.sigma)[0]

    def v2(self) -> dict[str, Any]:
        return {"sigma": [self.drawn, self.drawn]}
