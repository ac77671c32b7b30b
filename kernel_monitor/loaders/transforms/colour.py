"""Operations that change pixels' values: colours and Gaussian blur.

Grayscale, brightness, contrast and saturation are each a 3 x 3 matrix on a pixel's channels and a constant.
torchvision cuts the fractions of 8-bit results off (Pillow rounds only when it makes gray), DALI rounds: half a
step is subtracted. Hue is not here: DALI turns colours in YIQ, torchvision in HSV, and the two differ by 9 of 255.
Weights of gray: ITU-R BT.601, as in Pillow's `convert("L")` and torchvision's `rgb_to_grayscale` of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from .operation import Fed, Gates, Graph, Parameters, Step, between, coins, float32, opened, where_open
from .params import Floats, Ints, UInt64s, uniforms

_PILLOW = np.array([0.299, 0.587, 0.114])
TORCH = np.array([0.2989, 0.587, 0.114])  # their sum is 0.9999: truncation makes a gray pixel darker by one
_BRIGHTNESS, _CONTRAST, _SATURATION = 0, 1, 2
_NO_BLUR = 1e-2  # pixels: a window whose neighbours weigh exp(-5000), which is 0
_DRAWS = 8  # four places in the order, four factors

_Range = tuple[float, float] | None


def _matrix(graph: Graph, name: str, image: Any, constant: Any, dtype: str = "UINT8") -> Any:
    matrix = graph.fed(name, 2, "FLOAT")
    return graph.fn.coord_transform(image, M=matrix, T=constant, dtype=getattr(graph.types, dtype))


@dataclass(frozen=True)
class Gray(Step):
    """Grayscale to three equal channels, if all `gates` are open; `cut`: fractions are truncated."""

    gates: Gates
    cut: bool
    coin: bool

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        applied = opened(self.gates, keys)
        matrices = np.where(applied[:, None, None], TORCH if self.cut else _PILLOW, np.eye(3))
        constants = np.repeat(np.where(applied, -0.5 * self.cut, 0.0)[:, None], 3, axis=1)
        return {f"matrix{k}": float32(matrices), f"constant{k}": float32(constants)}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return coins(self.gates, keys) if self.coin else [None] * len(keys)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        return _matrix(graph, f"matrix{k}", image, graph.fed(f"constant{k}", 1, "FLOAT"))


@dataclass(frozen=True)
class Invert(Step):
    """255 minus each value, if all `gates` are open; the last gate is its own."""

    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        applied = opened(self.gates, keys)
        matrices = np.where(applied[:, None, None], -np.eye(3), np.eye(3))
        constants = np.repeat(np.where(applied, 255.0, 0.0)[:, None], 3, axis=1)
        return {f"matrix{k}": float32(matrices), f"constant{k}": float32(constants)}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return coins(self.gates, keys)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        return _matrix(graph, f"matrix{k}", image, graph.fed(f"constant{k}", 1, "FLOAT"))


@dataclass(frozen=True)
class BrightnessContrast(Step):
    """albumentations' RandomBrightnessContrast: each value times a factor, plus an addend, its fraction cut off.

    The factor is one more than a number of `contrast`, the addend 255 times one of `brightness`.
    """

    contrast: tuple[float, float]
    brightness: tuple[float, float]
    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        pairs = np.array([pair or (1.0, _HALF) for pair in self.drawn(keys, sizes)]).reshape(-1, 2)
        return {f"factor{k}": float32(pairs[:, 0]), f"addend{k}": float32(pairs[:, 1] - _HALF)}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        numbers = uniforms(keys, self.operation, BRIGHTNESS_DRAWS).tolist()
        return where_open(self.gates, keys, [brightness(row, self.contrast, self.brightness) for row in numbers])

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        factor, addend = (graph.beside_images(graph.fed(f"{name}{k}", 0, "FLOAT")) for name in ("factor", "addend"))
        changed = image * factor + addend
        return graph.fn.cast(changed, dtype=graph.types.UINT8)


_HALF = 0.499  # DALI rounds: subtracting this truncates, and keeps whole numbers as they are
BRIGHTNESS_DRAWS = 3  # the coin, two limits


def brightness(numbers: Sequence[float], contrast: Sequence[float], limit: Sequence[float]) -> tuple[float, float]:
    """Return the factor and addend, as float32, of RandomBrightnessContrast from `BRIGHTNESS_DRAWS` uniform numbers."""
    factor = 1 + contrast[0] + (contrast[1] - contrast[0]) * numbers[1]
    addend = (limit[0] + (limit[1] - limit[0]) * numbers[2]) * 255
    return float(np.float32(factor)), float(np.float32(addend))


@dataclass(frozen=True)
class Jitter(Step):
    """ColorJitter without hue: factors from these ranges, applied in the drawn order. None: not changed.

    `cut`: gray, too, is truncated to an integer, as by torch and not by Pillow.
    """

    brightness: _Range
    contrast: _Range
    saturation: _Range
    cut: bool
    gates: Gates

    @property
    def _slots(self) -> int:
        return sum(bounds is not None for bounds in (self.brightness, self.contrast, self.saturation))

    @property
    def _weights(self) -> Floats:
        return TORCH if self.cut else _PILLOW

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        ranges = (self.brightness, self.contrast, self.saturation, None)
        return where_open(self.gates, keys, jitter(uniforms(keys, self.operation, _DRAWS), ranges))

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        n, slots = len(keys), self._slots
        matrices = np.broadcast_to(np.eye(3), (slots, n, 3, 3)).copy()
        constants, means = np.zeros((slots, n)), np.zeros((slots, n))
        for row, drawn in enumerate(self.drawn(keys, sizes)):
            if drawn is None:
                continue
            order, *factors = drawn
            for slot, which in enumerate(number for number in order if factors[number] is not None):
                factor = factors[which]
                matrices[slot, row] = np.eye(3) * factor + (1 - factor) * self._weights * (which == _SATURATION)
                means[slot, row] = (1 - factor) * (which == _CONTRAST)
                constants[slot, row] = -0.5 - 0.5 * (1 - factor) * (self.cut and which != _BRIGHTNESS)
        inputs = {"matrix": matrices, "constant": constants, **({} if self.contrast is None else {"mean": means})}
        return {f"{name}{k}_{slot}": float32(inputs[name][slot]) for slot in range(slots) for name in inputs}, sizes

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        ones = graph.types.Constant(np.ones(3, dtype=np.float32), device="cpu")
        weights = graph.types.Constant(float32(self._weights), device=graph.device)
        for slot in range(self._slots):
            matrix, constant = f"matrix{k}_{slot}", ones * graph.fed(f"constant{k}_{slot}", 0, "FLOAT")
            if self.contrast is None:
                image = _matrix(graph, matrix, image, constant)
                continue
            # The mean of gray is the gray of the means.
            gray = graph.fn.reductions.sum(graph.fn.reductions.mean(image, axes=[0, 1]) * weights, axes=[0])
            mean = graph.beside_images(graph.fed(f"mean{k}_{slot}", 0, "FLOAT")) * gray
            if graph.arguments_of_images:
                image = _matrix(graph, matrix, image, constant + mean)
            else:
                changed = _matrix(graph, matrix, image, constant, "FLOAT") + mean
                image = graph.fn.cast(changed, dtype=graph.types.UINT8)
        return image


def jitter(numbers: Floats, ranges: tuple[_Range, _Range, _Range, _Range]) -> list[Any]:
    """Return ColorJitter's (order, brightness, contrast, saturation, hue) for n samples.

    The order is a permutation of 0 to 3, brightness to hue; a factor is None where its range is. The `numbers` are
    float64[n, 8], uniform in [0, 1).
    """
    orders = [tuple(order) for order in np.argsort(numbers[:, :4], axis=1, kind="stable").tolist()]
    columns: list[Any] = [
        repeat(None, len(numbers)) if bounds is None else between(numbers[:, 4 + which], *bounds).tolist()
        for which, bounds in enumerate(ranges)
    ]
    return list(zip(orders, *columns, strict=True))


class JitterInjection(Parameters):
    """ColorJitter, which draws (order, brightness, contrast, saturation, hue)."""

    draws = _DRAWS
    names = ("fn_idx", "brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")

    def draw(self, numbers: Floats, _height: int, _width: int) -> Any:
        given = self.transform
        return jitter(numbers[None], (given.brightness, given.contrast, given.saturation, given.hue))[0]

    def v1(self) -> Any:
        import torch

        return (torch.tensor(self.drawn[0]), *self.drawn[1:])


@dataclass(frozen=True)
class Blur(Step):
    """GaussianBlur with a window of `kernel` (width, height) pixels and a sigma between `low` and `high` pixels."""

    kernel: tuple[int, int]
    low: float
    high: float
    gates: Gates

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        sigmas = [_NO_BLUR if sigma is None else sigma for sigma in self.drawn(keys, sizes)]
        return {f"sigma{k}": float32(sigmas)}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        sigmas = between(uniforms(keys, self.operation, 1)[:, 0], self.low, self.high)
        return where_open(self.gates, keys, sigmas.tolist())

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        sigma = graph.fed(f"sigma{k}", 0, "FLOAT")
        return graph.fn.gaussian_blur(image, window_size=list(self.kernel[::-1]), sigma=sigma)


class BlurInjection(Parameters):
    """GaussianBlur, which draws a sigma in pixels."""

    def draw(self, numbers: Floats, _height: int, _width: int) -> Any:
        return between(numbers, *self.transform.sigma).tolist()[0]

    def v2(self) -> dict[str, Any]:
        return {"sigma": [self.drawn, self.drawn]}
