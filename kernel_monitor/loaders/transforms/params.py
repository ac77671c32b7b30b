"""The arithmetic of torchvision's transforms on sizes and boxes, one sample at a time and for whole batches.

Both forms give the same integers bit for bit: every operation is exact or correctly rounded in IEEE doubles, and
the exponential, which is not, is `math.exp` in both (NumPy's differs in the last bit on some processors).
Sources: torchvision's `RandomResizedCrop.get_params`, `RandomErasing.get_params`,
`_compute_resized_output_size` and `center_crop`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .draws import Floats, Ints

ATTEMPTS = 10
CROP_DRAWS = ERASE_DRAWS = 4 * ATTEMPTS  # area, aspect, top, left for each attempt


def crop_box(
    height: int, width: int, draws: Sequence[float], scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return the box (top, left, height, width) that RandomResizedCrop takes from one image, pixels.

    The `draws` are `CROP_DRAWS` uniform numbers in [0, 1), `scale` the least and greatest share of the area, `ratio`
    the least and greatest width / height.
    """
    for w, h, vertical, horizontal in _attempts(height * width, draws, scale, ratio):
        if 0 < w <= width and 0 < h <= height:
            return int(vertical * (height - h + 1)), int(horizontal * (width - w + 1)), h, w
    return _central(height, width, ratio)


def _attempts(
    area: int, draws: Sequence[float], scale: Sequence[float], ratio: Sequence[float]
) -> Iterator[tuple[int, int, float, float]]:
    """The sides of each attempt's box, whose quotient is in `ratio`, and two of its draws for the box's place."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for first in range(0, len(draws), 4):
        target = area * (scale[0] + (scale[1] - scale[0]) * draws[first])
        aspect = math.exp(low + (high - low) * draws[first + 1])
        yield round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect)), draws[first + 2], draws[first + 3]


def _central(height: int, width: int, ratio: Sequence[float]) -> tuple[int, int, int, int]:
    """The centre crop that torchvision takes when all attempts missed."""
    given = width / height
    h, w = height, width
    if given < min(ratio):
        h = round(w / min(ratio))
    elif given > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def crop_boxes(heights: Ints, widths: Ints, draws: Floats, scale: Sequence[float], ratio: Sequence[float]) -> Ints:
    """Return the boxes of a batch, int64[n, 4]: `crop_box` for each of n heights and widths, and rows of `draws`."""
    boxes = np.zeros((len(heights), 4), dtype=np.int64)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    left = np.arange(len(heights))
    for first in range(0, CROP_DRAWS, 4):
        if not len(left):
            return boxes
        height, width, numbers = heights[left], widths[left], draws[left, first : first + 4]
        target = (height * width) * (scale[0] + (scale[1] - scale[0]) * numbers[:, 0])
        aspect = np.array([math.exp(x) for x in (low + (high - low) * numbers[:, 1]).tolist()])
        w = np.rint(np.sqrt(target * aspect)).astype(np.int64)
        h = np.rint(np.sqrt(target / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        top = (numbers[:, 2] * (height - h + 1)).astype(np.int64)
        side = (numbers[:, 3] * (width - w + 1)).astype(np.int64)
        boxes[left[fits]] = np.stack([top, side, h, w], axis=1)[fits]
        left = left[~fits]
    for row in left.tolist():
        boxes[row] = _central(int(heights[row]), int(widths[row]), ratio)
    return boxes


def erase_box(
    height: int, width: int, draws: Sequence[float], scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return the box (top, left, height, width) that RandomErasing fills, pixels; all 0 where no attempt fits.

    As `crop_box`, but with `ERASE_DRAWS` numbers, and height / width as `ratio`.
    """
    for h, w, vertical, horizontal in _attempts(height * width, draws, scale, ratio):
        if h < height and w < width:
            return int(vertical * (height - h + 1)), int(horizontal * (width - w + 1)), h, w
    return 0, 0, 0, 0


def resized(height: int, width: int, size: Sequence[int] | None, max_size: int | None) -> tuple[int, int]:
    """Return the (height, width) that Resize gives an image; pixels.

    `size` is (shorter edge,) or (height, width); None scales the longer edge to `max_size`, which it never exceeds.
    """
    if size is not None and len(size) == 2:
        return size[0], size[1]
    short, long = (width, height) if width <= height else (height, width)
    if size is None:
        if max_size is None:
            raise ValueError("Resize needs size or max_size")
        new_short, new_long = int(max_size * short / long), max_size
    else:
        new_short, new_long = size[0], int(size[0] * long / short)
        if max_size is not None and new_long > max_size:
            new_short, new_long = int(max_size * new_short / new_long), max_size
    return (new_long, new_short) if width <= height else (new_short, new_long)


def center_start(length: int, crop: int) -> int:
    """Return where CenterCrop begins along one edge; negative where the image is padded first."""
    if crop > length:
        return -((crop - length) // 2)
    return round((length - crop) / 2.0)
