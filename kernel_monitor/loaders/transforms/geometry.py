"""Operations that move pixels: crops, paddings, resizes, mirror images, rotations and affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .operation import Cursor, Fed, Gates, Graph, Parameters, Step, between, coins, float32, int32, opened, where_open
from .params import CROP_DRAWS, Floats, Ints, UInt64s, center_start, crop_box, crop_boxes, resized, uniforms

# ---- Crops and paddings take a window of the image, filled with a colour where it reaches beyond; resizes scale it.

Colour = tuple[int, ...]  # RGB
Sides = tuple[int, int, int, int]  # left, top, right, bottom, as torchvision orders them; pixels
BLACK: Colour = (0, 0, 0)

FILTERS = {
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
    "lanczos": "INTERP_LANCZOS3",
}  # torchvision's, DALI's
NEAREST = {"nearest": 0.5, "nearest-exact": 0.0}  # torch samples this far left of a pixel's centre, in target pixels
_TIE = 1e-3  # source pixels: of two equally near pixels torch takes the right one; rounding would decide otherwise


@dataclass(frozen=True)
class Window(Step):
    fill = BLACK

    def window(self, keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        """Return the windows' top left corners, n pairs of top and left, and sizes, int64[n, 2]; in pixels."""
        raise NotImplementedError

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        starts, shapes = self.window(keys, sizes)
        return {f"start{k}": int32(starts).reshape(-1, 2), f"shape{k}": int32(shapes)}, shapes

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        start, shape = graph.fed(f"start{k}", 1), graph.fed(f"shape{k}", 1)
        options: dict[str, Any] = {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
        if not self.region:
            options |= {"out_of_bounds_policy": "pad", "fill_values": list(self.fill)}
        return graph.fn.slice(image, start, shape, **options)


@dataclass(frozen=True)
class RandomBox(Window):
    """The crop of RandomResizedCrop. `scale` are shares of the area, `ratio` are width / height."""

    scale: tuple[float, ...]
    ratio: tuple[float, ...]
    region = True

    def _boxes(self, keys: UInt64s, sizes: Ints) -> Ints:
        return crop_boxes(sizes[:, 0], sizes[:, 1], uniforms(keys, self.operation, CROP_DRAWS), self.scale, self.ratio)

    def window(self, keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        boxes = self._boxes(keys, sizes)
        return boxes[:, :2], boxes[:, 2:]

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        return [tuple(box) for box in self._boxes(keys, sizes).tolist()]


@dataclass(frozen=True)
class CropCenter(Window):
    """CenterCrop to `size` (height, width) in pixels; smaller images are padded with black."""

    size: tuple[int, int]

    def window(self, _keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        starts = [[center_start(h, self.size[0]), center_start(w, self.size[1])] for h, w in sizes.tolist()]
        return starts, _all(self.size, sizes)


@dataclass(frozen=True)
class CropMiddle(Window):
    """albumentations' CenterCrop to `size` (height, width) in pixels."""

    size: tuple[int, int]

    def window(self, _keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        for height, width in sizes.tolist():
            if height < self.size[0] or width < self.size[1]:
                raise ValueError(f"Crop size {self.size} exceeds image dimensions {(height, width)}")
        return (sizes - np.array(self.size)) // 2, _all(self.size, sizes)


@dataclass(frozen=True)
class Padded(Window):
    """Pad by `sides` pixels with `fill`."""

    sides: Sides
    fill: Colour

    def window(self, _keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        left, top, right, bottom = self.sides
        return _all((-top, -left), sizes), sizes + np.array([top + bottom, left + right])


@dataclass(frozen=True)
class RandomWindow(Window):
    """RandomCrop to `size` (height, width) after padding by `sides`, and as far as needed if `pad_if_needed`."""

    size: tuple[int, int]
    sides: Sides
    pad_if_needed: bool
    fill: Colour

    @property
    def region(self) -> bool:
        return not self.pad_if_needed and not any(self.sides)

    def window(self, keys: UInt64s, sizes: Ints) -> tuple[npt.ArrayLike, Ints]:
        starts = [[top - pads[1], left - pads[0]] for top, left, pads in self.drawn(keys, sizes)]
        return starts, _all(self.size, sizes)

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        numbers = uniforms(keys, self.operation, 2).tolist()
        pairs = zip(sizes.tolist(), numbers, strict=True)
        return [place(h, w, draws, self.size, self.sides, self.pad_if_needed) for (h, w), draws in pairs]


@dataclass(frozen=True)
class Scale(Step):
    """Resize. `size` is (shorter edge,), (height, width) or None with `max_size`; pixels.

    `interpolation` is one of torchvision's names, of `FILTERS` or `NEAREST`; with an `other` of `FILTERS`, each sample
    draws which of the two it gets.
    """

    size: tuple[int, ...] | None
    max_size: int | None = None
    interpolation: str = "bilinear"
    other: str | None = None
    antialias: bool = True

    @property
    def _fixed(self) -> bool:
        return self.size is not None and len(self.size) == 2

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        fed: Fed = {}
        if self._fixed:
            after = np.broadcast_to(np.array(self.size, dtype=np.int64), sizes.shape)
        else:
            new = [self._target(h, w) for h, w in sizes.tolist()]
            after = np.array(new, dtype=np.int64).reshape(-1, 2)
            fed[f"size{k}"] = float32(after)
        if self.interpolation in NEAREST:
            fed[f"matrix{k}"] = self._matrices(sizes, after)
        if self.other is not None:
            fed[f"second{k}"] = int32(chosen(keys, self.operation, 2))
        return fed, after

    def _target(self, height: int, width: int) -> tuple[int, int]:
        return resized(height, width, self.size, self.max_size)

    def _matrices(self, before: Ints, after: Ints) -> Any:
        """Return float32[n, 2, 3], the maps from a target pixel's position to the source's, x first."""
        step = before[:, ::-1] / after[:, ::-1]
        matrices = np.zeros((len(before), 2, 3))
        matrices[:, [0, 1], [0, 1]] = step
        matrices[:, :, 2] = _TIE - NEAREST[self.interpolation] * step
        return float32(matrices)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        size = list(self.size or ()) if self._fixed else graph.fed(f"size{k}", 1, "FLOAT")
        if self.interpolation in NEAREST:
            matrix = graph.fed(f"matrix{k}", 2, "FLOAT")
            return graph.fn.warp_affine(
                image, matrix=matrix, inverse_map=True, size=size, fill_value=None, interp_type=graph.types.INTERP_NN
            )
        kind = getattr(graph.types, FILTERS[self.interpolation])
        if self.other is not None:
            first, second = int(kind), int(getattr(graph.types, FILTERS[self.other]))
            number = graph.fed(f"second{k}", 0) * (second - first) + first
            kind = graph.fn.reinterpret(number, dtype=graph.types.INTERP_TYPE)
        return graph.fn.resize(image, size=size, interp_type=kind, antialias=self.antialias, subpixel_scale=False)


@dataclass(frozen=True)
class ScaleEdge(Scale):
    """albumentations' SmallestMaxSize, or LongestMaxSize: that edge gets the length `size` (one number), pixels."""

    longest: bool = False

    def _target(self, height: int, width: int) -> tuple[int, int]:
        (length,) = self.size or (0,)
        scale = length / (max if self.longest else min)(height, width)
        return max(1, round(height * scale)), max(1, round(width * scale))


def chosen(keys: UInt64s, operation: int, count: int) -> Ints:
    """Return int64[n], the number of the interpolation, out of `count`, that each sample draws after its crop."""
    return (uniforms(keys, operation, CROP_DRAWS + 1)[:, CROP_DRAWS] * count).astype(np.int64)


def place(
    height: int, width: int, draws: Sequence[float], size: Sequence[int], sides: Sides, pad_if_needed: bool
) -> tuple[int, int, Sides]:
    """Return RandomCrop's top and left in the padded image, and the padding; pixels.

    If `pad_if_needed`, images that are too small after padding by `sides` get what they lack, on both sides.
    `size` is (height, width) of the crop, `draws` two uniform numbers in [0, 1).

    Raises:
        ValueError: the image is too small, with torchvision's message.
    """
    left, top, right, bottom = sides
    tall, wide = height + top + bottom, width + left + right
    if pad_if_needed:
        more, aside = max(size[0] - tall, 0), max(size[1] - wide, 0)
        left, top, right, bottom = left + aside, top + more, right + aside, bottom + more
        tall, wide = tall + 2 * more, wide + 2 * aside
    if tall < size[0] or wide < size[1]:
        raise ValueError(f"Required crop size {tuple(size)} is larger than input image size {(tall, wide)}")
    first, second = int(draws[0] * (tall - size[0] + 1)), int(draws[1] * (wide - size[1] + 1))
    return first, second, (left, top, right, bottom)


def sides_of(padding: Any) -> Sides:
    """Return torchvision's padding argument (one, two or four numbers) as left, top, right, bottom."""
    numbers = [padding] if isinstance(padding, int) else list(padding or [0])
    left, top, right, bottom = {1: numbers * 4, 2: numbers * 2, 4: numbers}[len(numbers)]
    return left, top, right, bottom


def _all(pair: tuple[int, int], sizes: Ints) -> Ints:
    return np.broadcast_to(np.array(pair, dtype=np.int64), sizes.shape)


class RandomBoxInjection(Parameters):
    """RandomResizedCrop, which draws (top, left, height, width)."""

    draws = CROP_DRAWS
    names = ("top", "left", "height", "width")

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return crop_box(height, width, numbers.tolist(), self.transform.scale, self.transform.ratio)


class ChosenBoxInjection(RandomBoxInjection):
    """timm's RandomResizedCropAndInterpolation, which draws (top, left, height, width) and an interpolation."""

    _chosen: list[int]

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        given = transform.interpolation
        self._choices = list(given) if isinstance(given, (tuple, list)) else [given]

    def begin(self, keys: UInt64s) -> None:
        super().begin(keys)
        self._chosen = chosen(keys, self.operation, len(self._choices)).tolist()

    def __call__(self, image: Any) -> Any:
        self.transform.interpolation = self._choices[self._chosen[self.cursor.row]]
        return super().__call__(image)


class RandomWindowInjection(Parameters):
    """RandomCrop, which draws (top, left, padding)."""

    draws = 2
    names = ("top", "left", "height", "width")

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        crop = self.transform
        return place(height, width, numbers.tolist(), crop.size, padding_of(crop), crop.pad_if_needed)

    def v1(self) -> Any:
        return (*self.drawn[:2], *self.transform.size)

    def v2(self) -> dict[str, Any]:
        padding = self.drawn[2]
        return {**super().v2(), "needs_crop": True, "needs_pad": any(padding), "padding": list(padding)}


def padding_of(crop: Any) -> Sides:
    """Return RandomCrop's padding as `Sides`; v2 keeps it as left, right, top, bottom."""
    if type(crop).__module__.startswith("torchvision.transforms.v2") and crop.padding is not None:
        left, right, top, bottom = crop.padding
        return left, top, right, bottom
    return sides_of(crop.padding)


# ---- Mirror images; rotations and affine maps about the image's centre, at the size it has.

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
class _Ranges:
    """The ranges of RandomAffine: degrees, shares of width and height, factors, degrees (two or four numbers)."""

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

    ranges: _Ranges
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
    """Return the six coefficients that map a position in the result to a position in the image, x first.

    It is the inverse of this map: shear (degrees, x first), scale and rotate (degrees, clockwise) about `center`, then
    move (pixels, x first). Source: torchvision's `functional._get_inverse_affine_matrix`.
    """
    rotation, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(rotation - sy) / math.cos(sy)
    b = -math.cos(rotation - sy) * math.tan(sx) / math.cos(sy) - math.sin(rotation)
    c = math.sin(rotation - sy) / math.cos(sy)
    d = -math.sin(rotation - sy) * math.tan(sx) / math.cos(sy) + math.cos(rotation)
    m = [value / scale for value in (d, -b, -c, a)]
    x, y = center[0] + move[0], center[1] + move[1]
    return [m[0], m[1], center[0] - m[0] * x - m[1] * y, m[2], m[3], center[1] - m[2] * x - m[3] * y]


class AffineInjection(Parameters):
    """RandomAffine, which draws (angle, (x, y), scale, (shear x, shear y))."""

    draws = _DRAWS
    names = ("angle", "translate", "scale", "shear")

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return ranges_of(self.transform).draw(numbers[None], [(height, width)])[0]


class RotationInjection(AffineInjection):
    """RandomRotation, which draws an angle in degrees."""

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return super().draw(numbers, height, width)[0]

    def v2(self) -> dict[str, Any]:
        return {"angle": self.drawn}


def ranges_of(transform: Any) -> _Ranges:
    """Return the ranges of a RandomAffine, or of a RandomRotation, which has degrees only."""
    others = (getattr(transform, name, None) for name in ("translate", "scale", "shear"))
    return _Ranges(tuple(transform.degrees), *(None if values is None else tuple(values) for values in others))
