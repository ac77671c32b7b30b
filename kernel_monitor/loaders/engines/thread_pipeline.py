"""DALI's operators, as our steps use them, computed with torch in threads of this process: engine `threads`.

`Step.build` and `recorded.build` write a chain of operators for a `Graph`. DALI runs it for a whole batch; here each
sample is computed by itself, as soon as a thread is free. torch and the decoders release the GIL while they compute.
"""

from __future__ import annotations

import io
import logging
import math
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image
from torchvision.transforms.v2 import functional

from ...text import cause
from ..transforms.operation import Graph
from .dali_graph import Nodes

log = logging.getLogger(__name__)

_JPEG, _EXIF = b"\xff\xd8", b"Exif\0\0"
_HEAD = 1 << 16  # bytes of a file in which EXIF data begin
_SHARE = 4  # a batch is divided into so many tasks for each thread: fewer wait for the slowest one


class Filter(IntEnum):
    """The interpolations; the names are DALI's."""

    INTERP_NN = 0
    INTERP_LINEAR = 1
    INTERP_CUBIC = 2
    INTERP_LANCZOS3 = 3


_MODES = {Filter.INTERP_LINEAR: "bilinear", Filter.INTERP_CUBIC: "bicubic"}
_TYPES = SimpleNamespace(
    **Filter.__members__,
    INTERP_TYPE=Filter,
    UINT8=torch.uint8,
    UINT16=torch.uint16,
    FLOAT=torch.float32,
    RGB="RGB",
    BGR="BGR",
    GRAY="L",
    Constant=lambda value, **_: torch.from_numpy(value),
)


class TorchGraph(Graph):
    """A chain that is computed as it is written, for one sample; `fed` gives its inputs, by row and name.

    Images are uint8[height, width, channels] in host memory.
    """

    def __init__(self, given: Mapping[str, Sequence[Any]], row: int) -> None:
        self.fn: Any = _OPERATORS
        self.types: Any = _TYPES
        self.device, self.arguments_of_images = "cpu", True
        self._given, self._row = given, row

    def fed(self, name: str, ndim: int, dtype: str = "INT32") -> Any:
        del dtype
        value = self._given[name][self._row]
        return value.item() if ndim == 0 else value

    def beside_images(self, node: Any) -> Any:
        return node


class Results(list[torch.Tensor]):
    """The results of a batch at one place, with the names of DALI's `TensorList`."""

    batch: torch.Tensor | None = None  # all of them in one tensor, if they were written there

    def is_dense_tensor(self) -> bool:
        return self.batch is not None or len({image.shape for image in self}) == 1

    def as_tensor(self) -> torch.Tensor:
        return torch.stack(self) if self.batch is None else self.batch

    def shape(self) -> list[tuple[int, ...]]:
        return [tuple(image.shape) for image in self]


class ThreadPipeline:
    """A pipeline with the methods of DALI's that the engine calls; see the module's docstring.

    `nodes` writes the chain, `threads` is the number of threads. With `dense`, each result is written into one tensor
    for the batch, as long as all have the same shape.
    """

    def __init__(self, nodes: Nodes, *, threads: int, dense: bool) -> None:
        self._nodes, self._threads, self._dense = nodes, threads, dense
        self._pool = ThreadPoolExecutor(threads, "kernel-monitor-threads", initializer=_compute_alone)
        self._given: dict[str, Sequence[Any]] = {}
        self._runs: deque[_Run] = deque()

    def feed_input(self, name: str, values: Any) -> None:
        """Give an input of the next run: a sequence or an array with a value for each sample."""
        self._given[name] = values

    def schedule_run(self) -> None:
        """Start to compute the samples that were fed."""
        given, self._given = self._given, {}
        count = len(next(iter(given.values())))
        run = _Run(self._nodes, given, count, dense=self._dense)
        step = max(1, math.ceil(count / (_SHARE * self._threads)))
        run.tasks = [
            self._pool.submit(run.compute, range(first, min(first + step, count))) for first in range(0, count, step)
        ]
        self._runs.append(run)

    def outputs(self) -> tuple[Results, ...]:
        """Wait for the oldest run; return the results at each place of the chain's.

        Raises:
            Exception: a file cannot be read or decoded, or an operation failed.
        """
        return self._runs.popleft().results()


def make(nodes: Nodes, *, batch_size: int, threads: int, device: int | None, dense: bool) -> ThreadPipeline:
    """Return the pipeline of a chain; the arguments are those of `dali_graph.build`."""
    del batch_size, device
    return ThreadPipeline(nodes, threads=threads, dense=dense)


class _Run:
    """One batch that is computed; its samples are shared out to threads."""

    def __init__(self, nodes: Nodes, given: Mapping[str, Sequence[Any]], count: int, *, dense: bool) -> None:
        self.tasks: list[Future[None]] = []
        self._nodes, self._given, self._dense = nodes, given, dense
        self._found: list[Sequence[Any]] = [()] * count
        self._batches: list[torch.Tensor | None] = []  # one for each place, where all results are alike so far
        self._lock = threading.Lock()

    def compute(self, rows: range) -> None:
        with torch.no_grad():
            for row in rows:
                found = self._nodes(TorchGraph(self._given, row))
                self._found[row] = self._written(row, found) if self._dense else found

    def _written(self, row: int, found: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        with self._lock:
            if not self._batches:
                self._batches = [image.new_empty((len(self._found), *image.shape)) for image in found]
        kept = []
        for place, image in enumerate(found):
            batch = self._batches[place]
            if batch is not None and batch.shape[1:] == image.shape:
                kept.append(batch[row].copy_(image))
            else:
                self._batches[place] = None
                kept.append(image)
        return kept

    def results(self) -> tuple[Results, ...]:
        for task in self.tasks:
            task.result()
        made = tuple(map(Results, zip(*self._found, strict=True)))
        for result, batch in zip(made, self._batches, strict=False):
            result.batch = batch
        return made


_number = threading.Lock()


def _compute_alone() -> None:
    """Let torch compute in this thread alone: it would start a team of threads of its own for each of ours."""
    with _number:
        usual = torch.get_num_threads()
        torch.set_num_threads(1)
        # That is also the number for threads that begin later, which the training may start: set back from such a one.
        restoring = threading.Thread(target=torch.set_num_threads, args=(usual,))
        restoring.start()
        restoring.join()


# ---- Decoders: the fastest that gives Pillow's pixels, bit for bit.


@lru_cache(maxsize=1)
def _decoder() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a decoder of JPEG files to RGB, uint8[3, height, width]: torchcodec's or torchvision's; None: neither."""
    try:
        from torchcodec import decoders

        of_torchcodec: Callable[[torch.Tensor], torch.Tensor] = decoders.decode_jpeg  # type: ignore[assignment]
    except ModuleNotFoundError:
        log.debug("torchcodec is not installed")
    except Exception as error:  # noqa: BLE001 - it is built for another torch, or lacks this decoder
        log.info("torchcodec cannot be used: %s", cause(error))
    else:
        return of_torchcodec
    try:
        from torchvision.io import ImageReadMode
        from torchvision.io import decode_jpeg as of_torchvision
    except ImportError:
        return None

    def decoded(data: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its decoders move to torchcodec
            image: torch.Tensor = of_torchvision(data, ImageReadMode.RGB)
        return image

    return decoded


def _read(path: Any, **_: Any) -> bytes:
    return Path(os.fsdecode(path.tobytes())).read_bytes()


def _decode(data: Any, *, output_type: str, dtype: torch.dtype = torch.uint8, **_: Any) -> torch.Tensor:
    """Return the image of a file, in RGB, in BGR or as values of one channel, of 8 or 16 bits."""
    whole = data if isinstance(data, bytes) else data.tobytes()
    decoder = None if output_type == "L" or _turned(whole) else _decoder()
    if decoder is not None and whole.startswith(_JPEG):
        image = decoder(torch.frombuffer(bytearray(whole), dtype=torch.uint8)).permute(1, 2, 0)
    else:
        with Image.open(io.BytesIO(whole)) as file:
            # Values of 16 bits are as they are in the file: `convert` would bring them to 8.
            array = np.array(file if dtype is torch.uint16 else file.convert("L" if output_type == "L" else "RGB"))
        image = torch.from_numpy(array if array.ndim == 3 else array[..., None])
    return image.flip(-1) if output_type == "BGR" else image


def _turned(file: bytes) -> bool:
    """Return whether a file's EXIF data may say that its image is to be turned: Pillow leaves it as it is stored."""
    if file.find(_EXIF, 0, _HEAD) < 0:
        return False
    with Image.open(io.BytesIO(file)) as image:
        return image.getexif().get(ExifTags.Base.Orientation, 1) != 1  # type: ignore[no-any-return]


def _decode_slice(data: Any, start: Any, shape: Any, **options: Any) -> torch.Tensor:
    names = {name: options[name] for name in ("output_type",)}
    return _slice(_decode(data, **names), start, shape)


# ---- Operators, with the arguments that our steps give them.


def _slice(image: torch.Tensor, start: Any, shape: Any, fill_values: Sequence[int] = (), **_: Any) -> torch.Tensor:
    """Return a part of an image; where it reaches beyond, it is filled."""
    (top, left), (height, width) = map(int, start), map(int, shape)
    bottom, right = top + height, left + width
    inside = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if inside.shape[:2] == (height, width):
        return inside
    whole = torch.tensor(fill_values, dtype=image.dtype).expand(height, width, -1).contiguous()
    down, across = max(-top, 0), max(-left, 0)
    whole[down : down + inside.shape[0], across : across + inside.shape[1]] = inside
    return whole


def _resize(
    image: torch.Tensor,
    size: Any,
    interp_type: int,
    antialias: bool,
    roi_start: Any = None,
    roi_end: Any = None,
    **_: Any,
) -> torch.Tensor:
    """Return an image of this size; of the region from `roi_start` to `roi_end`, pixels that may have fractions."""
    height, width = int(size[0]), int(size[1])
    if roi_start is None:
        return _scaled(image, (height, width), interp_type, antialias)
    scale = np.array([height, width]) / (np.asarray(roi_end, dtype=np.float64) - roi_start)
    whole = np.rint(scale * image.shape[:2]).astype(int)
    top, left = np.rint(roi_start * scale).astype(int).tolist()
    made = _scaled(image, (int(whole[0]), int(whole[1])), interp_type, antialias)
    return made[top : top + height, left : left + width]


def _scaled(image: torch.Tensor, size: tuple[int, int], interp_type: int, antialias: bool) -> torch.Tensor:
    if image.shape[:2] == size:
        return image
    if interp_type not in _MODES:
        made = Image.fromarray(image.numpy()).resize(size[::-1], Image.Resampling.LANCZOS)
        return torch.from_numpy(np.array(made))
    planes: torch.Tensor = image.permute(2, 0, 1)[None]  # channels beside each other, which torch resizes fastest
    options: dict[str, Any] = {"mode": _MODES[Filter(interp_type)], "antialias": antialias, "align_corners": False}
    resized: torch.Tensor = torch.nn.functional.interpolate(planes, size=size, **options)
    return resized[0].permute(1, 2, 0)


def _flip(image: torch.Tensor, horizontal: int = 0, vertical: int = 0) -> torch.Tensor:
    axes = [axis for axis, mirrored in ((1, horizontal), (0, vertical)) if mirrored]
    return image.flip(axes) if axes else image


def _warp_affine(
    image: torch.Tensor, matrix: Any, size: Any = None, fill_value: float | None = None, **_: Any
) -> torch.Tensor:
    """Return the nearest pixels at mapped positions; without `fill_value`, those at the border beyond it."""
    height, width = image.shape[:2] if size is None else map(int, size)
    m = torch.from_numpy(matrix)
    y, x = torch.arange(height, dtype=torch.float32)[:, None] + 0.5, torch.arange(width, dtype=torch.float32) + 0.5
    columns = torch.floor(m[0, 0] * x + m[0, 1] * y + m[0, 2]).long()
    rows = torch.floor(m[1, 0] * x + m[1, 1] * y + m[1, 2]).long()
    tall, wide = image.shape[:2]
    made = image[rows.clamp(0, tall - 1), columns.clamp(0, wide - 1)]
    if fill_value is not None:
        made[(rows < 0) | (rows >= tall) | (columns < 0) | (columns >= wide)] = int(fill_value)
    return made


def _coord_transform(image: torch.Tensor, M: Any, T: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: N803 - DALI's names
    matrix = torch.from_numpy(M)
    if not torch.is_tensor(T):
        T = torch.from_numpy(T)  # noqa: N806
    made = image.reshape(-1, image.shape[-1]).float() @ matrix.T + T
    return _cast(made.reshape(image.shape), dtype)


def _cast(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is not torch.uint8:
        return image.to(dtype)
    return image.round_().clamp_(0, 255).to(torch.uint8)


def _gaussian_blur(image: torch.Tensor, window_size: Sequence[int], sigma: float) -> torch.Tensor:
    blurred: torch.Tensor = functional.gaussian_blur(image.permute(2, 0, 1), list(window_size[::-1]), [sigma, sigma])
    return blurred.permute(1, 2, 0)


def _erase(image: torch.Tensor, anchor: Any, shape: Any, fill_value: Sequence[float], **_: Any) -> torch.Tensor:
    """Fill a part of an image [channels, height, width] in place."""
    (top, left), (height, width) = map(int, anchor), map(int, shape)
    if height and width:
        image[:, top : top + height, left : left + width] = torch.tensor(fill_value, dtype=image.dtype)[:, None, None]
    return image


def _crop_mirror_normalize(
    image: torch.Tensor,
    dtype: torch.dtype,
    output_layout: str,
    mean: Sequence[float],
    std: Sequence[float],
    mirror: int = 0,
) -> torch.Tensor:
    """Return (pixel - mean) / std for each channel, or the pixels themselves as bytes."""
    image = image.flip(1) if mirror else image
    image = image.permute(2, 0, 1) if output_layout == "CHW" else image
    if dtype is torch.uint8:
        return image.contiguous()
    made = torch.empty(image.shape, dtype=dtype).copy_(image)
    factor, offset = _scaling(tuple(mean), tuple(std))
    if output_layout == "HWC":
        factor, offset = factor[:, 0, 0], offset[:, 0, 0]
    return made.mul_(factor).add_(offset)


@lru_cache(maxsize=64)
def _scaling(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    factor = [1 / each for each in std]
    offset = [-value * by for value, by in zip(mean, factor, strict=True)]
    first, second = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (factor, offset))
    return first, second


_OPERATORS = SimpleNamespace(
    io=SimpleNamespace(file=SimpleNamespace(read=_read)),
    decoders=SimpleNamespace(image=_decode, image_slice=_decode_slice),
    slice=_slice,
    resize=_resize,
    flip=_flip,
    warp_affine=_warp_affine,
    coord_transform=_coord_transform,
    cast=_cast,
    reinterpret=lambda value, dtype: dtype(value),
    gaussian_blur=_gaussian_blur,
    erase=_erase,
    crop_mirror_normalize=_crop_mirror_normalize,
    transpose=lambda image, perm: image.permute(*perm).contiguous(),
    reductions=SimpleNamespace(
        mean=lambda image, axes: image.to(torch.float32).mean(dim=axes),
        sum=lambda values, axes: values.sum(dim=axes),
    ),
)
