"""What a chain of transforms amounts to: steps on pixels, then one scaling. And the numbers each step needs.

A `Program` is the meeting point of the engines: `translate` writes it, `dali_graph` builds a pipeline from it,
`arrays` computes a batch's parameters for it with the functions that the torchvision engine uses as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .draws import UInt64s, uniforms
from .params import CROP_DRAWS, center_start, crop_boxes, resized

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CropResize:
    """RandomResizedCrop. `operation` is its position in the chain; `size` is (height, width) in pixels."""

    operation: int
    size: tuple[int, int]
    scale: tuple[float, float]
    ratio: tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Resize. `size` is (shorter edge,), (height, width) or None with `max_size`; pixels."""

    size: tuple[int, ...] | None
    max_size: int | None


@dataclass(frozen=True)
class CropCenter:
    """CenterCrop to `size` (height, width) in pixels; smaller images are padded with black."""

    size: tuple[int, int]


@dataclass(frozen=True)
class Mirror:
    """RandomHorizontalFlip with probability `p`."""

    operation: int
    p: float


Step = CropResize | Scale | CropCenter | Mirror


@dataclass(frozen=True)
class Program:
    """A translated chain.

    Attributes:
        steps: on 8-bit RGB pixels, in order.
        size: (height, width) of every image at the end, pixels.
        floating: whether the result is float32; else uint8.
        factor, offset: per channel, result = pixel (0 to 255) * factor + offset.
    """

    steps: tuple[Step, ...]
    size: tuple[int, int]
    floating: bool
    factor: tuple[float, float, float]
    offset: tuple[float, float, float]

    @property
    def body(self) -> tuple[Step, ...]:
        """The steps without the flips at the end, which are fused into the scaling."""
        last = len(self.steps)
        while last and isinstance(self.steps[last - 1], Mirror):
            last -= 1
        return self.steps[:last]

    @property
    def mirrors(self) -> tuple[Mirror, ...]:
        """The flips at the end."""
        return tuple(step for step in self.steps[len(self.body) :] if isinstance(step, Mirror))


def arrays(program: Program, keys: UInt64s, heights: Ints, widths: Ints) -> dict[str, npt.NDArray[np.int32]]:
    """Return what a pipeline of `program` is fed for n samples, by the name of its input.

    Args:
        program: the translated chain.
        keys: uint64[n], of the samples.
        heights, widths: int64[n], of the files' images, pixels.

    Returns:
        `start<k>` and `shape<k>` int32[n, 2] (top, left / height, width), `size<k>` int32[n, 2],
        `mirror<k>` int32[n] for step k of the body, and `mirror` int32[n] where flips end the chain.
    """
    fed: dict[str, npt.NDArray[np.int64]] = {}
    for k, step in enumerate(program.body):
        if isinstance(step, CropResize):
            boxes = crop_boxes(heights, widths, uniforms(keys, step.operation, CROP_DRAWS), step.scale, step.ratio)
            fed[f"start{k}"], fed[f"shape{k}"] = boxes[:, :2], boxes[:, 2:]
            heights, widths = np.full_like(heights, step.size[0]), np.full_like(widths, step.size[1])
        elif isinstance(step, Scale):
            pairs = zip(heights.tolist(), widths.tolist(), strict=True)
            sizes = np.array([resized(h, w, step.size, step.max_size) for h, w in pairs], dtype=np.int64)
            fed[f"size{k}"] = sizes.reshape(-1, 2)
            heights, widths = fed[f"size{k}"][:, 0], fed[f"size{k}"][:, 1]
        elif isinstance(step, CropCenter):
            starts = [
                [center_start(h, step.size[0]), center_start(w, step.size[1])]
                for h, w in zip(heights.tolist(), widths.tolist(), strict=True)
            ]
            fed[f"start{k}"] = np.array(starts, dtype=np.int64).reshape(-1, 2)
            heights, widths = np.full_like(heights, step.size[0]), np.full_like(widths, step.size[1])
        else:
            fed[f"mirror{k}"] = _flipped(step, keys)
    if program.mirrors:
        mirror = np.zeros(len(keys), dtype=np.int64)
        for step in program.mirrors:
            mirror ^= _flipped(step, keys)
        fed["mirror"] = mirror
    return {name: np.ascontiguousarray(values, dtype=np.int32) for name, values in fed.items()}


def _flipped(step: Mirror, keys: UInt64s) -> Ints:
    return (uniforms(keys, step.operation, 1)[:, 0] < step.p).astype(np.int64)
