"""Operations that move pixels: crops, paddings, resizes, mirror images, rotations and affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .operation import Cursor, Fed, Gates, Graph, Parameters, Step, between, coins, float32, int32, opened, where_open
from .params import CROP_DRAWS, Floats, Ints, UInt64s, center_start, crop_box, crop_boxes, each, resized, uniforms

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

    def draw(self, numbers: Floats, sizes: Ints) -> Draws:
        """Return the draws of n images.

        The `numbers` are float64[n, 6], uniform in [0, 1); the `sizes` int64[n, 2], height and width, pixels.
        """
        n = len(sizes)
        moves, scales, shears = np.zeros((n, 2), dtype=np.int64), np.ones(n), np.zeros((n, 2))
        if self.translate is not None:
            most = np.array(self.translate) * sizes[:, ::-1]
            moves = np.rint((2 * numbers[:, 1:3] - 1) * most).astype(np.int64)
        if self.scale is not None:
            scales = between(numbers[:, 3], *self.scale)
        if self.shear is not None:
            shears[:, 0] = between(numbers[:, 4], *self.shear[:2])
            if len(self.shear) == 4:
                shears[:, 1] = between(numbers[:, 5], *self.shear[2:])
        return Draws(between(numbers[:, 0], *self.degrees), moves, scales, shears)


class Draws(NamedTuple):
    """The draws of RandomAffine for n images."""

    angles: Floats  # float64[n], degrees
    moves: Ints  # int64[n, 2], x and y, pixels
    scales: Floats  # float64[n]
    shears: Floats  # float64[n, 2], x and y, degrees

    def each(self) -> list[Any]:
        """Return (angle, (x, y), scale, (shear x, shear y)) for each image."""
        pairs = [list(map(tuple, values.tolist())) for values in (self.moves, self.shears)]
        return list(zip(self.angles.tolist(), pairs[0], self.scales.tolist(), pairs[1], strict=True))


@dataclass(frozen=True)
class Warp(Step):
    """RandomRotation (if `rotation`) or RandomAffine; `center` is (x, y) in pixels, None for the image's own."""

    ranges: _Ranges
    rotation: bool
    center: tuple[float, float] | None
    fill: int
    gates: Gates

    def _draw(self, keys: UInt64s, sizes: Ints) -> Draws:
        return self.ranges.draw(uniforms(keys, self.operation, _DRAWS), sizes)

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        angles, moves, scales, shears = self._draw(keys, sizes)
        centers = sizes[:, ::-1] / 2 if self.center is None else np.broadcast_to(self.center, sizes.shape)
        matrices = inverse_affine(centers, -angles if self.rotation else angles, moves, scales, shears)
        if self.gates:
            matrices[~opened(self.gates, keys)] = _IDENTITY
        return {f"matrix{k}": float32(matrices).reshape(-1, 2, 3)}, sizes

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        drawn = self._draw(keys, sizes)
        return where_open(self.gates, keys, drawn.angles.tolist() if self.rotation else drawn.each())

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        matrix = graph.fed(f"matrix{k}", 2, "FLOAT")
        options = {"fill_value": float(self.fill), "interp_type": graph.types.INTERP_NN}
        return graph.fn.warp_affine(image, matrix=matrix, inverse_map=True, **options)


def inverse_affine(centers: Floats, angles: Floats, moves: Ints, scales: Floats, shears: Floats) -> Floats:
    """Return, for n images, the coefficients that map a position in the result to one in the image, float64[n, 6].

    x comes first, in each: `centers` and `moves` (pixels) and `shears` (degrees) are [n, 2], `angles` (degrees) and
    `scales` [n]. The map is the inverse of this: shear, scale and rotate (clockwise) about the centre, then move.
    Source: torchvision's `functional._get_inverse_affine_matrix`.
    """
    rotation = np.radians(angles)
    cos, sin = each(math.cos, rotation), each(math.sin, rotation)
    a, b, c, d = cos, -sin, sin, cos
    if shears.any():
        sx, sy = np.radians(shears.T)
        cos_y, tan_x = each(math.cos, sy), each(math.tan, sx)
        a, c = each(math.cos, rotation - sy), each(math.sin, rotation - sy)
        b, d = -a * tan_x / cos_y - sin, -c * tan_x / cos_y + cos
        a, c = a / cos_y, c / cos_y
    (x, y), (to_x, to_y) = centers.T, (centers + moves).T
    matrices = np.empty((len(angles), 6))
    m = matrices.T
    m[0], m[1], m[3], m[4] = d / scales, -b / scales, -c / scales, a / scales
    m[2], m[5] = x - m[0] * to_x - m[1] * to_y, y - m[3] * to_x - m[4] * to_y
    return matrices


class AffineInjection(Parameters):
    """RandomAffine, which draws (angle, (x, y), scale, (shear x, shear y))."""

    draws = _DRAWS
    names = ("angle", "translate", "scale", "shear")

    def draw(self, numbers: Floats, height: int, width: int) -> Any:
        return ranges_of(self.transform).draw(numbers[None], np.array([(height, width)])).each()[0]


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
