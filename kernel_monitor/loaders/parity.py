"""A comparison of the engines' pixels after each transform, on the same samples with the same parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.dlpack import from_dlpack
from torchvision import transforms as v1

from ..errors import MonitorError
from .data.file_check import FileTable, check_bytes
from .engines import dali_graph, torch_engine, worker_start
from .engines.engine import Setting, gpu
from .transforms.chain import flatten, name_of, operations
from .transforms.inject import Injected, as_kind
from .transforms.params import Floats, UInt64s, sample_keys
from .transforms.program import Program, arrays, drawn
from .transforms.translate import scaling, translate


@dataclass(frozen=True)
class StepParity:
    """The difference of the images after a transform of the chain."""

    name: str  # the transform's name
    how: str  # `direct` if DALI does it, `after DALI` if torchvision does it on DALI's images
    mean: float  # mean, greatest: absolute difference of the images at that point, in pixel values 0 to 255
    greatest: float


@dataclass(frozen=True)
class Parity:
    """The result of a comparison of pixels."""

    backends: tuple[str, str]  # names of the two engines
    samples: int  # number of samples compared
    skipped: int  # number of samples not compared, because DALI does not decode their files
    mean: float  # mean, greatest: absolute difference after the whole chain, in pixel values 0 to 255
    greatest: float
    parameters_equal: bool  # whether every crop, flip, angle, factor and box fed to DALI equals torchvision's
    steps: tuple[StepParity, ...]  # differences after each transform
    reason: str | None = None  # a sentence on why some transforms run after DALI; None if none does


class ChainPrefix:
    """The first transforms of a chain in both engines, for one image at a time, apart from any engine in use.

    Args:
        transforms: the flat list of transforms.
        kind: the kind of images that the data set opens.
        device: a CUDA device's number, None for the CPU.
        encoded: whether DALI gets the files' bytes, else their paths.
        fused: whether DALI decodes only the part of an image that a crop at the beginning needs.
    """

    def __init__(self, transforms: list[Any], kind: str, device: int | None, *, encoded: bool, fused: bool) -> None:
        chain = v1.Compose(transforms)
        self.program: Program = translate(chain, kind)
        self._unit = np.abs(np.array(scaling(transforms, kind)))[:, None, None]
        self._encoded = encoded
        work = dali_graph.Translated(self.program, fused=fused)
        self._pipeline = work.build(batch_size=1, threads=1, device=device, encoded=encoded)
        self._injected = Injected(chain)
        self._directly = sum(operations(transform) for transform in transforms[: self.program.rest])

    def difference(self, image: Any, file: bytes, keys: UInt64s, size: tuple[int, int]) -> tuple[Floats, bool]:
        """Return the absolute difference, float64[channels, h, w] in pixel values, and whether parameters were equal.

        Args:
            image: the image as the data set opens it.
            file: its file for DALI, as path or bytes.
            keys: uint64[1], the key of its random numbers.
            size: height and width of the file's image in pixels.
        """
        program, injected = self.program, self._injected
        heights, widths = np.array([size[0]]), np.array([size[1]])
        injected.begin(keys)
        expected = _array(injected.run(image, 0))
        used = {k: value for k, value in injected.drawn().items() if k < self._directly}
        dali_graph.feed(self._pipeline, [file], arrays(program, keys, heights, widths), encoded=self._encoded)
        (out,) = self._pipeline.run()
        made = from_dlpack(out.as_tensor())[0].cpu()
        if program.rest is not None:
            made = injected.run(as_kind(program.rest_kind, made), 0, start=program.rest)
        actual = _array(made)
        if expected.shape != actual.shape:
            raise MonitorError(f"The engines' images have different shapes: {expected.shape} and {actual.shape}.")
        (fed,) = drawn(program, keys, heights, widths)
        unit = self._unit if np.issubdtype(expected.dtype, np.floating) else 1.0
        return np.abs(expected.astype(np.float64) - actual) / unit, used == fed


def compare(setting: Setting, backend: str, n: int, seed: int) -> Parity:
    """Compare n samples, spread evenly over the data set, of the torchvision path and of `dali-cpu` or `dali-gpu`.

    Raises:
        MonitorError: the loader has the user's own DALI pipeline, or its transform returns no images.
    """
    if setting.own is not None:
        raise MonitorError("parity() compares translated transforms; this loader has a pipeline of its own (dali=).")
    worker_start.before_dali()
    worker_start.note_dali()
    source = setting.keyed.source
    chain = list(flatten(source.transform))
    device = gpu(setting) if backend == "dali-gpu" else None
    positions = _positions(chain)
    prefixes = [
        ChainPrefix(chain[: k + 1], source.kind, device, encoded=source.encoded, fused=setting.fused(device))
        for k in positions
    ]
    program = translate(source.transform, source.kind)
    table = FileTable(source.files)
    indices = np.unique(np.linspace(0, len(source) - 1, num=min(n, len(source))).round().astype(int)).tolist()
    sums, counts, greatest = np.zeros((3, len(prefixes)))
    compared, parameters_equal = 0, True
    with setting.keyed.apart():
        for index in indices:
            located = source.read(source.locate(index))
            if located.reason is not None:
                continue
            path = source.absolute(located.path)
            facts = table.check(located.number, path) if located.data is None else check_bytes(located.data)
            turned = facts.turned and located.reading is not None and located.reading.opened.turned
            if facts.reason is not None or turned:
                continue
            file = os.fsencode(path) if located.data is None else located.data
            keys = sample_keys(seed, 0, [index], [0])
            compared += 1
            for row, prefix in enumerate(prefixes):
                found, equal = prefix.difference(source.open(located), file, keys, (facts.height, facts.width))
                sums[row] += found.sum()
                counts[row] += found.size
                greatest[row] = max(greatest[row], found.max())
                parameters_equal = parameters_equal and equal
    means = sums / np.where(counts, counts, np.nan)
    directly = len(chain[: program.rest])
    steps = tuple(
        StepParity(name_of(chain[position]), "direct" if position < directly else "after DALI", mean, worst)
        for position, mean, worst in zip(positions, means.tolist(), greatest.tolist(), strict=True)
    )
    mean, worst = (steps[-1].mean, steps[-1].greatest) if steps else (0.0, 0.0)
    skipped = len(indices) - compared
    return Parity((torch_engine.NAME, backend), compared, skipped, mean, worst, parameters_equal, steps, program.reason)


def _positions(chain: list[Any]) -> list[int]:
    """Return the positions after which to compare: all but those that DALI merely fuses into its scaling; the last."""
    fused = ("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype", "Identity")
    last = len(chain) - 1
    return [k for k, transform in enumerate(chain) if k == last or type(transform).__name__ not in fused]


def _array(image: Any) -> npt.NDArray[Any]:
    """Return an image as an array [channels, height, width]."""
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.numpy()
    if isinstance(image, Image.Image):
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    raise MonitorError(f"parity() compares images; the transform gives {type(image).__name__}.")
