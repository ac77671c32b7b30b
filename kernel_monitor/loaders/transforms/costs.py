"""What a chain costs DALI on the CPU, beside what it costs torchvision: reckoned from measured tables.

The tables are those of `costs.json`, one for each maker of processors, written by `python -m benchmarks.diagnose
--costs`. Each entry has, for each engine, the CPU time per megapixel that goes in and per megapixel that comes out, in
units of decoding a megapixel with Pillow; a ratio of two sums of them does not depend on the machine's speed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .chain import APPLY, CHOICE, ORDER, Chain, flatten, name_of, operations
from .draws import sample_keys
from .ops.base import Ints
from .ops.crop import RandomBox
from .program import Program
from .translate import read

FILE = Path(__file__).with_suffix(".json")
TORCHVISION, DALI = "torchvision", "dali-cpu"
DRAWS = 64
"""Samples over whose draws the sizes are averaged."""
FREE = frozenset({"ToImage", "PILToTensor", "ToPureTensor", "Identity", "CenterCrop", "RandomCrop", "MaybePILToTensor"})
"""Their cost is that of what they deliver, which is counted once, at the end."""
ENDS = frozenset({"ToTensor", "MaybeToTensor", "ToDtype", "ConvertImageDtype"})

Costs = Mapping[str, Mapping[str, Sequence[float]]]


@cache
def tables() -> Mapping[str, Costs]:
    """By the maker of the processor, the measured costs.

    Each by `Name/kind of image`, and of `decode`, `decode region`, `uint8`, `float32`, `Normalize`.
    """
    return {maker: one["costs"] for maker, one in json.loads(FILE.read_text("utf-8")).items()}


def ratios(transform: Any, program: Program, sizes: Ints, *, fused: bool) -> dict[str, float]:
    """`ratio` by each table that has all of the transforms."""
    found = {maker: ratio(transform, program, sizes, fused=fused, costs=costs) for maker, costs in tables().items()}
    return {maker: value for maker, value in found.items() if value is not None}


def ratio(transform: Any, program: Program, sizes: Ints, *, fused: bool, costs: Costs) -> float | None:
    """CPU time of a chain with DALI over that with torchvision; None where a transform is not in the table.

    Args:
        transform: the data set's.
        program: its translation; with a `rest`, whose cost DALI does not take over, there is no ratio.
        sizes: int64[n, 2], height and width of some of the data set's images, pixels.
        fused: whether a crop at the start is decoded alone.
        costs: one of `tables()`.
    """
    if program.rest is not None or len(sizes) == 0:
        return None
    keys = sample_keys(0, 0, range(DRAWS), [0] * DRAWS)
    shapes = np.resize(sizes, (DRAWS, 2)).astype(np.int64)
    mega = _mega(shapes)
    sums = {TORCHVISION: costs["decode"][TORCHVISION][0] * mega, DALI: costs["decode"][DALI][0] * mega}
    chain, first = Chain(), 0
    for one in flatten(transform):
        name, kind = name_of(one), chain.kind
        if type(one) in (*APPLY, *CHOICE, *ORDER):
            return None
        start = len(chain.steps)
        read(chain, one, first)
        first += operations(one)
        before, box = _mega(shapes), None
        for step in chain.steps[start:]:
            _, shapes = step.arrays(0, keys, shapes)
            if isinstance(step, RandomBox):
                box = _mega(shapes)
        after = _mega(shapes)
        if start == 0 and fused and chain.steps and chain.steps[0].region:
            # The decoder reads the whole file and transforms only the blocks of the region.
            least = costs["decode region"][DALI][0]
            share = (after if box is None else box) / mega
            sums[DALI] = mega * (least + (costs["decode"][DALI][0] - least) * share)
        if name in FREE or name in ENDS:
            continue
        entry = costs.get(name if name == "Normalize" else _entry(name, kind))
        if entry is None:
            return None
        for engine in sums:
            per_in, per_out = entry[engine]
            sums[engine] += per_in * (before if box is None else box) + per_out * after
    end = costs["float32" if chain.kind == "floats" else "uint8"]
    for engine in sums:
        sums[engine] += end[engine][1] * _mega(shapes)
    return sums[DALI] / sums[TORCHVISION]


def _entry(name: str, kind: str) -> str:
    kind = "pil" if kind == "pil" else "tensor"
    return f"{'Resize' if name.startswith('RandomResizedCrop') else name}/{kind}"


def _mega(shapes: Ints) -> float:
    return float(shapes.prod(axis=1).mean()) / 1e6
