"""The numbers of transforms: draws that depend only on the sample, and torchvision's arithmetic on sizes and boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# ---- Random numbers that depend only on their sample.

UInt64s = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_N1, _N2 = np.uint64(_M1), np.uint64(_M2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_OPERATIONS = 1 << 20  # draws per operation before two operations could share a counter


def _mix(words: UInt64s) -> UInt64s:
    """Apply the finaliser of SplitMix64 to each element; multiplication wraps at 64 bits."""
    words = (words ^ (words >> _S30)) * _N1
    words = (words ^ (words >> _S27)) * _N2
    return words ^ (words >> _S31)


def _mix_int(word: int) -> int:
    """Return the same of one integer, taken modulo 2**64."""
    word &= _MASK
    word = (word ^ (word >> 30)) * _M1 & _MASK
    word = (word ^ (word >> 27)) * _M2 & _MASK
    return word ^ (word >> 31)


def sample_keys(seed: int, epoch: int, indices: Sequence[int], occurrences: Sequence[int]) -> UInt64s:
    """Return one 64-bit key per sample, uint64[n].

    The seed is any integer, taken modulo 2**64; indices in the data set may be negative; occurrences count how often an
    index came earlier in the epoch.
    """
    base = _mix_int(_mix_int(seed + _GOLDEN) + epoch * _GOLDEN + 1)
    index = np.asarray(indices, dtype=np.int64).astype(np.uint64)
    count = np.asarray(occurrences, dtype=np.int64).astype(np.uint64)
    keys = _mix(np.uint64(base) + (index + np.uint64(1)) * np.uint64(_GOLDEN))
    return _mix(keys + (count + np.uint64(1)) * np.uint64(_GOLDEN))


def uniforms(keys: UInt64s, operation: int, draws: int) -> Floats:
    """Return uniform numbers in [0, 1) with 53 random bits, float64[n, draws].

    They belong to n samples with these `keys`, and to the operation at this position in the chain of transforms.
    """
    words = _mix(keys[:, None] + _counters(operation, draws))
    numbers: Floats = (words >> _S11).astype(np.float64) * 2.0**-53
    return numbers


@lru_cache(maxsize=1024)
def _counters(operation: int, draws: int) -> UInt64s:
    first = operation * _OPERATIONS + 1
    return np.arange(first, first + draws, dtype=np.uint64) * np.uint64(_GOLDEN)


def stream_seeds(keys: UInt64s, operation: int) -> list[int]:
    """Return a seed (63 bits) for each sample key, for generators that an operation draws from by itself.

    The operation is a position in the chain of transforms, or a negative number of a stream, see `random_streams`.
    """
    offset = np.uint64(((operation * _OPERATIONS + 1) * _GOLDEN) & _MASK)
    seeds: list[int] = (_mix(keys + offset) >> np.uint64(1)).tolist()
    return seeds


# ---- The arithmetic of torchvision's transforms on sizes and boxes, one sample at a time and for whole batches.

_ATTEMPTS = 10
CROP_DRAWS = ERASE_DRAWS = 4 * _ATTEMPTS  # area, aspect, top, left for each attempt


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
    """Yield the sides of each attempt's box, whose quotient is in `ratio`, and two of its draws for the box's place."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for first in range(0, len(draws), 4):
        target = area * (scale[0] + (scale[1] - scale[0]) * draws[first])
        aspect = math.exp(low + (high - low) * draws[first + 1])
        yield round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect)), draws[first + 2], draws[first + 3]


def _central(height: int, width: int, ratio: Sequence[float]) -> tuple[int, int, int, int]:
    """Return the centre crop that torchvision takes when all attempts missed."""
    given = width / height
    h, w = height, width
    if given < min(ratio):
        h = round(w / min(ratio))
    elif given > max(ratio):
        w = round(h * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w


def crop_boxes(heights: Ints, widths: Ints, draws: Floats, scale: Sequence[float], ratio: Sequence[float]) -> Ints:
    """Return the boxes of a batch, int64[n, 4]: `crop_box` for each of n heights and widths, and rows of `draws`."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    numbers = draws.reshape(-1, _ATTEMPTS, 4)
    target = (heights * widths)[:, None] * (scale[0] + (scale[1] - scale[0]) * numbers[:, :, 0])
    aspect = each(math.exp, low + (high - low) * numbers[:, :, 1])
    w = np.rint(np.sqrt(target * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(target / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= widths[:, None]) & (h > 0) & (h <= heights[:, None])
    chosen = np.arange(len(numbers)), fits.argmax(axis=1)  # the first attempt that fits
    h, w = h[chosen], w[chosen]
    vertical, horizontal = numbers[chosen][:, 2:].T
    top = (vertical * (heights - h + 1)).astype(np.int64)
    left = (horizontal * (widths - w + 1)).astype(np.int64)
    boxes: Ints = np.stack([top, left, h, w], axis=1)
    for row in np.flatnonzero(~fits[chosen]).tolist():
        boxes[row] = _central(int(heights[row]), int(widths[row]), ratio)
    return boxes


def each(function: Callable[[float], float], values: Floats) -> Floats:
    """Return a function of `math` of each number: NumPy's own may differ in the last bit."""
    return np.array(list(map(function, values.ravel().tolist()))).reshape(values.shape)


def erase_box(
    height: int, width: int, draws: Sequence[float], scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return the box (top, left, height, width), in pixels, that RandomErasing fills; all 0 if no attempt fits.

    The arguments are those of `crop_box`, but with `ERASE_DRAWS` numbers, and height / width as `ratio`.
    """
    for h, w, vertical, horizontal in _attempts(height * width, draws, scale, ratio):
        if h < height and w < width:
            return int(vertical * (height - h + 1)), int(horizontal * (width - w + 1)), h, w
    return 0, 0, 0, 0


def resized(height: int, width: int, size: Sequence[int] | None, max_size: int | None) -> tuple[int, int]:
    """Return the (height, width), in pixels, of an image after Resize.

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
    """Return the start of CenterCrop along an edge; negative if the image is padded first."""
    if crop > length:
        return -((crop - length) // 2)
    return round((length - crop) / 2.0)
