"""Resizing to explicit sizes: antialiased, as Pillow does, and without DALI's own rounding of target sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..draws import Ints, UInt64s, uniforms
from ..params import CROP_DRAWS, resized
from .operation import Fed, Graph, Step, float32, int32

FILTERS = {
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
    "lanczos": "INTERP_LANCZOS3",
}  # torchvision's, DALI's
NEAREST = {"nearest": 0.5, "nearest-exact": 0.0}  # how far left of a pixel's centre torch takes it, of a target pixel
_TIE = 1e-3  # source pixels: of two as near, torch takes the right one; float32 alone would leave it to rounding


@dataclass(frozen=True)
class Scale(Step):
    """Resize. `size` is (shorter edge,), (height, width) or None with `max_size`; pixels.

    `interpolation` is one of torchvision's names, of `FILTERS` or `NEAREST`.
    """

    size: tuple[int, ...] | None
    max_size: int | None = None
    interpolation: str = "bilinear"

    @property
    def _fixed(self) -> bool:
        return self.size is not None and len(self.size) == 2

    def arrays(self, k: int, _keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        fed: Fed = {}
        if self._fixed:
            after = np.broadcast_to(np.array(self.size, dtype=np.int64), sizes.shape)
        else:
            new = [resized(h, w, self.size, self.max_size) for h, w in sizes.tolist()]
            after = np.array(new, dtype=np.int64).reshape(-1, 2)
            fed[f"size{k}"] = float32(after)
        if self.interpolation in NEAREST:
            fed[f"matrix{k}"] = self._matrices(sizes, after)
        return fed, after

    def _matrices(self, before: Ints, after: Ints) -> Any:
        """float32[n, 2, 3]: from a target pixel's place to the source's, x first."""
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
        return graph.fn.resize(image, size=size, interp_type=kind, antialias=True, subpixel_scale=False)


@dataclass(frozen=True)
class ChosenScale(Step):
    """Resize to `size` (height, width) after a random crop, by one of two `names` of `FILTERS`, drawn for each."""

    size: tuple[int, int]
    names: tuple[str, str]

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        after = np.broadcast_to(np.array(self.size, dtype=np.int64), sizes.shape)
        return {f"second{k}": int32(chosen(keys, self.operation, 2))}, after

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        first, other = (int(getattr(graph.types, FILTERS[name])) for name in self.names)
        number = graph.fed(f"second{k}", 0) * (other - first) + first
        kind = graph.fn.reinterpret(number, dtype=graph.types.INTERP_TYPE)
        return graph.fn.resize(image, size=list(self.size), interp_type=kind, antialias=True, subpixel_scale=False)


def chosen(keys: UInt64s, operation: int, count: int) -> Ints:
    """int64[n], which of `count` interpolations each sample draws, after the numbers of its crop."""
    return (uniforms(keys, operation, CROP_DRAWS + 1)[:, CROP_DRAWS] * count).astype(np.int64)
