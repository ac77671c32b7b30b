"""How close the engines' pixels are: the whole chain, and after each transform, on the same samples and parameters."""

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
from .data.file_check import FileTable, look_bytes
from .engines import dali_graph, torch_engine, worker_start
from .engines.engine import Setting, gpu
from .transforms.chain import flatten, name_of, operations
from .transforms.inject import Injected, as_kind
from .transforms.params import Floats, UInt64s, sample_keys
from .transforms.program import Program, arrays, drawn
from .transforms.translate import scaling, translate


@dataclass(frozen=True)
class StepParity:
    """Difference after one transform of the chain."""

    name: str  # of the transform
    how: str  # `direct` where DALI does it, `after DALI` where torchvision does it on DALI's images
    mean: float  # mean, greatest: absolute difference of the images at that point, pixel values 0 to 255
    greatest: float


@dataclass(frozen=True)
class Parity:
    """The result of a comparison of pixels."""

    backends: tuple[str, str]  # names of the two engines
    samples: int  # how many were compared
    skipped: int  # how many were not, because DALI is not given their files
    mean: float  # mean, greatest: absolute difference of the whole chain, pixel values 0 to 255
    greatest: float
    parameters_equal: bool  # whether every crop, flip, angle, factor and box that DALI is fed was torchvision's
    steps: tuple[StepParity, ...]  # differences after each transform
    reason: str | None = None  # why some transforms run after DALI, a sentence; None where none does


class ChainPrefix:
    """The beginning of a chain in both engines, one image at a time: a comparison must not disturb an engine at work.

    The `transforms` are flat, `device` is a CUDA device's number, None for the CPU; files come `encoded` or as paths,
    and a crop that comes first is decoded alone where `fused`.
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

        Of an image as the data set opens it; DALI gets its `file` as path or bytes. The keys are uint64[1], the size
        is height and width of the file's image, pixels.
        """
        program, injected = self.program, self._injected
        heights, widths = np.array([size[0]]), np.array([size[1]])
        injected.begin(keys)
        ours = _array(injected.run(image, 0))
        used = {k: value for k, value in injected.drawn().items() if k < self._directly}
        dali_graph.feed(self._pipeline, [file], arrays(program, keys, heights, widths), encoded=self._encoded)
        (out,) = self._pipeline.run()
        made = from_dlpack(out.as_tensor())[0].cpu()
        if program.rest is not None:
            made = injected.run(as_kind(program.rest_kind, made), 0, start=program.rest)
        theirs = _array(made)
        if ours.shape != theirs.shape:
            raise MonitorError(f"The engines' images have different shapes: {ours.shape} and {theirs.shape}.")
        (fed,) = drawn(program, keys, heights, widths)
        unit = self._unit if np.issubdtype(ours.dtype, np.floating) else 1.0
        return np.abs(ours.astype(np.float64) - theirs) / unit, used == fed


def compare(setting: Setting, backend: str, n: int, seed: int) -> Parity:
    """Compute n samples, spread evenly over the data set, with the torchvision path and with `dali-cpu` or `dali-gpu`.

    Raises:
        MonitorError: the loader has a DALI pipeline of the user's, or its transform gives no images.
    """
    if setting.own is not None:
        raise MonitorError("parity() compares translated transforms; this loader has a pipeline of its own (dali=).")
    worker_start.before_dali()
    worker_start.note_dali()
    source = setting.keyed.source
    chain = list(flatten(source.transform))
    device = gpu(setting) if backend == "dali-gpu" else None
    positions = _positions(chain)
    way = {"encoded": source.encoded, "fused": setting.fused(device)}
    stages = [ChainPrefix(chain[: position + 1], source.kind, device, **way) for position in positions]
    program = translate(source.transform, source.kind)
    table = FileTable(source.files)
    indices = np.unique(np.linspace(0, len(source) - 1, num=min(n, len(source))).round().astype(int)).tolist()
    sums, counts, greatest = np.zeros((3, len(stages)))
    compared, same = 0, True
    with setting.keyed.apart():
        for index in indices:
            located = source.read(source.locate(index))
            if located.reason is not None:
                continue
            path = source.absolute(located.path)
            facts = table.look(located.number, path) if located.data is None else look_bytes(located.data)
            turned = facts.turned and located.reading is not None and located.reading.opened.turned
            if facts.reason is not None or turned:
                continue
            file = os.fsencode(path) if located.data is None else located.data
            keys = sample_keys(seed, 0, [index], [0])
            compared += 1
            for row, stage in enumerate(stages):
                found, equal = stage.difference(source.open(located), file, keys, (facts.height, facts.width))
                sums[row] += found.sum()
                counts[row] += found.size
                greatest[row] = max(greatest[row], found.max())
                same = same and equal
    means = sums / np.where(counts, counts, np.nan)
    directly = len(chain[: program.rest])
    steps = tuple(
        StepParity(name_of(chain[position]), "direct" if position < directly else "after DALI", mean, most)
        for position, mean, most in zip(positions, means.tolist(), greatest.tolist(), strict=True)
    )
    mean, most = (steps[-1].mean, steps[-1].greatest) if steps else (0.0, 0.0)
    skipped = len(indices) - compared
    return Parity((torch_engine.NAME, backend), compared, skipped, mean, most, same, steps, program.reason)


def _positions(chain: list[Any]) -> list[int]:
    """Return where to compare: after each transform that DALI does not merely fuse into its scaling, and at the end."""
    fused = ("ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToDtype", "ConvertImageDtype", "Identity")
    last = len(chain) - 1
    return [k for k, transform in enumerate(chain) if k == last or type(transform).__name__ not in fused]


def _array(image: Any) -> npt.NDArray[Any]:
    """[channels, height, width] of an image."""
    if isinstance(image, torch.Tensor) and image.ndim == 3:
        return image.numpy()
    if isinstance(image, Image.Image):
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    raise MonitorError(f"parity() compares images; the transform gives {type(image).__name__}.")
