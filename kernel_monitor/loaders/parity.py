"""How close the engines' pixels are: the whole chain, and after each step, on the same samples and parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack
from torchvision import transforms as v1
from torchvision.transforms import functional

from .data.files import FileTable
from .data.keyed import own_generators
from .engines import dali_graph, torch_engine
from .engines.backends import Setting, gpu
from .transforms.draws import sample_keys, uniforms
from .transforms.inject import Injected
from .transforms.program import CropResize, Mirror, Program, arrays
from .transforms.translate import flatten, name_of, translate


@dataclass(frozen=True)
class StepParity:
    """Difference after one transform of the chain, pixels 0 to 255: mean and greatest."""

    name: str
    mean: float
    greatest: float


@dataclass(frozen=True)
class Parity:
    """What a comparison found.

    Attributes:
        backends: names of the two engines.
        samples: how many were compared.
        skipped: how many were not, because DALI is not given their files.
        mean, greatest: absolute difference of the whole chain, in pixel values 0 to 255.
        parameters_equal: whether every crop and flip was the same in both.
        steps: differences after each transform that changes pixels.
    """

    backends: tuple[str, str]
    samples: int
    skipped: int
    mean: float
    greatest: float
    parameters_equal: bool
    steps: tuple[StepParity, ...]


class _Dali:
    """One-image pipeline of a program, by itself: a comparison must not disturb an engine at work."""

    def __init__(self, program: Program, device: int | None) -> None:
        self._program = program
        self._pipeline = dali_graph.build(program, batch_size=1, threads=1, device=device)

    def run(self, path: str, keys: Any, height: int, width: int) -> npt.NDArray[np.float64]:
        """float64[3, h, w] of one file."""
        self._pipeline.feed_input("name", [np.frombuffer(os.fsencode(path), dtype=np.uint8)])
        fed = arrays(self._program, keys, np.array([height]), np.array([width]))
        for name, values in fed.items():
            self._pipeline.feed_input(name, values)
        (out,) = self._pipeline.run()
        tensor = from_dlpack(out.as_tensor())[0]
        return tensor.cpu().double().numpy()


def compare(setting: Setting, backend: str, n: int) -> Parity:
    """Compute n samples, spread evenly over the data set, with the torchvision path and with DALI.

    Args:
        setting: of the loader.
        backend: `dali-cpu` or `dali-gpu`.
        n: number of samples.
    """
    torch_engine.note_dali()
    source, seed = setting.keyed.source, setting.keyed.seed
    program, chain = translate(source.transform), list(flatten(source.transform))
    device = None
    if backend == "dali-gpu":
        device = gpu(setting)
    stages = _stages(program, chain)
    pipelines = [_Dali(stage, device) for _, stage in stages]
    copies = [Injected(v1.Compose(chain[: position + 1])) for position, _ in stages]
    whole = [_Dali(program, device)], [Injected(source.transform)]
    factor = np.array(program.factor)[:, None, None]
    table = FileTable(source.files)
    indices = np.unique(np.linspace(0, len(source) - 1, num=min(n, len(source))).round().astype(int)).tolist()
    totals = np.zeros((len(stages) + 1, 2))
    greatest = np.zeros(len(stages) + 1)
    compared, same = 0, True
    with own_generators():
        for index in indices:
            located = source.locate(index)
            path = source.absolute(located.path)
            facts = table.look(located.number, path)
            if facts.reason is not None:
                continue
            keys = sample_keys(seed, 0, [index], [0])
            compared += 1
            runs = zip([*pipelines, *whole[0]], [*copies, *whole[1]], strict=True)
            for row, (pipeline, copy) in enumerate(runs):
                copy.begin(keys)
                image = copy.run(source.loader(path), 0)
                theirs = pipeline.run(path, keys, facts.height, facts.width)
                difference = np.abs(_pixels(image) - theirs)
                if row == len(stages):
                    difference = difference / np.abs(factor)
                    same = same and copy.drawn() == _drawn(program, keys, facts.height, facts.width)
                totals[row] += difference.sum(), difference.size
                greatest[row] = max(greatest[row], difference.max())
    means = totals[:, 0] / np.maximum(totals[:, 1], 1)
    steps = [
        StepParity(name_of(chain[position]), float(means[row]), float(greatest[row]))
        for row, (position, _) in enumerate(stages)
    ]
    return Parity(
        (torch_engine.NAME, backend),
        compared,
        len(indices) - compared,
        float(means[-1]) if compared else float("nan"),
        float(greatest[-1]) if compared else float("nan"),
        same,
        tuple(steps),
    )


def _stages(program: Program, chain: list[Any]) -> list[tuple[int, Program]]:
    """The chain cut off after each transform that changes pixels: its position, and the program up to there."""
    spatial = [position for position, one in enumerate(chain) if _is_spatial(one)]
    unity = (1.0, 1.0, 1.0)
    return [
        (position, Program(program.steps[: count + 1], program.size, False, unity, (0.0, 0.0, 0.0)))
        for count, position in enumerate(spatial)
        if all(not _makes_floats(one) for one in chain[:position])
    ]


def _is_spatial(one: Any) -> bool:
    return type(one).__name__ in ("RandomResizedCrop", "Resize", "CenterCrop", "RandomHorizontalFlip")


def _makes_floats(one: Any) -> bool:
    return type(one).__name__ in ("ToTensor", "ToDtype", "ConvertImageDtype")


def _pixels(image: Any) -> npt.NDArray[np.float64]:
    tensor = image if isinstance(image, torch.Tensor) else functional.pil_to_tensor(image)
    return tensor.double().numpy()


def _drawn(program: Program, keys: Any, height: int, width: int) -> dict[int, Any]:
    """What DALI is fed for one sample, in the form of `Injected.drawn`: boxes and flips by position."""
    fed = arrays(program, keys, np.array([height]), np.array([width]))
    found: dict[int, Any] = {}
    for k, step in enumerate(program.steps):
        if isinstance(step, CropResize):
            found[step.operation] = (*fed[f"start{k}"][0].tolist(), *fed[f"shape{k}"][0].tolist())
        elif isinstance(step, Mirror):
            found[step.operation] = bool(uniforms(keys, step.operation, 1)[0, 0] < step.p)
    return found
