"""Mirror images; rotations and affine maps about the image's centre, at the size it has.

Nearest neighbour agrees with Pillow and with torch. Bilinear does not: at the border, Pillow and torch each blend with
the fill in their own way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..draws import Floats, Ints, UInt64s, uniforms
from .operation import Fed, Gates, Graph, Parameters, Step, between, coins, float32, int32, opened, where_open

_DRAWS = 6  # angle, x, y, scale, shear x, shear y
_IDENTITY = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


@dataclass(frozen=True)
class Mirror(Step):
    """A flip where all `gates` are open: left to right, or upside down if `vertical`. The last gate is its own."""

    gates: Gates
    vertical: bool = False

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        return {f"mirror{k}": int32(opened(self.gates, keys))}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return coins(self.gates, keys)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        mirror = graph.fed(f"mirror{k}", 0)
        directions = {"horizontal": 0, "vertical": mirror} if self.vertical else {"horizontal": mirror}
        return graph.fn.flip(image, **directions)


@dataclass(frozen=True)
class Ranges:
    """What RandomAffine draws from: degrees, shares of width and height, factors, degrees (two or four numbers)."""

    degrees: tuple[float, ...]
    translate: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    shear: tuple[float, ...] | None = None

    def draw(self, numbers: Floats, sizes: Sequence[Sequence[int]]) -> list[Any]:
        """Return (angle, (x, y), scale, (shear x, shear y)) for n images: degrees, pixels, factor, degrees.

        The `numbers` are float64[n, 6], uniform in [0, 1); the `sizes` height and width, pixels.
        """
        angles = between(numbers[:, 0], *self.degrees)
        scales = [1.0] * len(sizes) if self.scale is None else between(numbers[:, 3], *self.scale)
        shear = self.shear or ()
        across = between(numbers[:, 4], *shear[:2]) if shear else [0.0] * len(sizes)
        down = between(numbers[:, 5], *shear[2:]) if len(shear) == 4 else [0.0] * len(sizes)
        moves = [self._move(pair, size) for pair, size in zip(numbers[:, 1:3].tolist(), sizes, strict=True)]
        return list(zip(angles, moves, scales, zip(across, down, strict=True), strict=True))

    def _move(self, numbers: Sequence[float], size: Sequence[int]) -> tuple[int, int]:
        if self.translate is None:
            return 0, 0
        most = self.translate[0] * size[1], self.translate[1] * size[0]
        return round((2 * numbers[0] - 1) * most[0]), round((2 * numbers[1] - 1) * most[1])


@dataclass(frozen=True)
class Warp(Step):
    """RandomRotation (if `rotation`) or RandomAffine; `center` is (x, y) in pixels, None for the image's own."""

    ranges: Ranges
    rotation: bool
    center: tuple[float, float] | None
    fill: int
    gates: Gates

    def _draw(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        return where_open(self.gates, keys, self.ranges.draw(uniforms(keys, self.operation, _DRAWS), sizes.tolist()))

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        matrices = []
        for (height, width), drawn in zip(sizes.tolist(), self._draw(keys, sizes), strict=True):
            if drawn is None:
                matrices.append(_IDENTITY)
                continue
            center = (width / 2, height / 2) if self.center is None else self.center
            angle = -drawn[0] if self.rotation else drawn[0]
            matrices.append(inverse_affine(center, angle, *drawn[1:]))
        return {f"matrix{k}": float32(matrices).reshape(-1, 2, 3)}, sizes

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        drawn = self._draw(keys, sizes)
        return [one and one[0] for one in drawn] if self.rotation else drawn

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        matrix = graph.fed(f"matrix{k}", 2, "FLOAT")
        options = {"fill_value": float(self.fill), "interp_type": graph.types.INTERP_NN}
        return graph.fn.warp_affine(image, matrix=matrix, inverse_map=True, **options)


def inverse_affine(
    center: Sequence[float], angle: float, move: Sequence[float], scale: float, shear: Sequence[float]
) -> list[float]:
    """Return the six coefficients that map a place in the result to one in the image, x first.

    The inverse of: shear (degrees, x first), scale and rotate (degrees, clockwise) about `center`, then move (pixels, x
    first). Source: torchvision's `functional._get_inverse_affine_matrix`.
    """
    turn, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - sy) / math.cos(sy)
    b = -math.cos(turn - sy) * math.tan(sx) / math.cos(sy) - math.sin(turn)
    c = math.sin(turn - sy) / math.cos(sy)
    d = -math.sin(turn - sy) * math.tan(sx) / math.cos(sy) + math.cos(turn)
    m = [value / scale for value in (d, -b, -c, a)]
    x, y = center[0] + move[0], center[1] + move[1]
    return [m[0], m[1], center[0] - m[0] * x - m[1] * y, m[2], m[3], center[1] - m[2] * x - m[3] * y]


class AffineInjection(Parameters):
    """RandomAffine draws (angle, (x, y), scale, (shear x, shear y))."""

    draws = _DRAWS
    names = ("angle", "translate", "scale", "shear")

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return ranges_of(self.transform).draw(numbers[None], [(height, width)])[0]


class RotationInjection(AffineInjection):
    """RandomRotation draws an angle, degrees."""

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return super().draw(numbers, height, width)[0]

    def v2(self) -> dict[str, Any]:
        return {"angle": self.drawn}


def ranges_of(transform: Any) -> Ranges:
    """What RandomAffine draws from, or RandomRotation, which has degrees only."""
    others = (getattr(transform, name, None) for name in ("translate", "scale", "shear"))
    return Ranges(tuple(transform.degrees), *(None if values is None else tuple(values) for values in others))
