"""What each transform costs with torchvision and with DALI on the CPU: the table that a gain is reckoned with.

    python -m benchmarks.diagnose --costs

CPU seconds of this process per image, of whole chains through the switchable loader's own engines: `torchvision`
without workers, `dali-cpu` with one thread. A transform's cost is the difference of two chains, with and without it
(three of it where one is little), so that memory is taken and given back as in a real chain. The least of some
passes over the same images counts: everything that disturbs adds. Written in units of decoding a megapixel with
Pillow, so that machines of other speed share the table.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.demo import demo_data
from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.transforms.costs import FILE

from .common import machine, switch_and_settle, versions

BATCH = 32
ENGINES = ("torchvision", "dali-cpu")
TENSOR = [v2.PILToTensor()]
COPIES = 3
SIDE = 336
"""Pixels, side of what is delivered where the cost of delivering is measured: the larger, the clearer."""


def measure_costs(images: int = 64, passes: int = 5) -> dict[str, Any]:
    """Measure and return the table; see `kernel_monitor.loaders.transforms.costs`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-costs-") as temporary:
        root = demo_data(Path(temporary, "images"), images=images)
        pixels = _megapixels(root)

        def cost(chain: list[Any], *, fused: bool = False) -> dict[str, float]:
            return chain_cost(root, chain, passes, fused=fused)

        unit = cost([v2.CenterCrop(8), v2.PILToTensor()])
        decode = unit["torchvision"] / pixels
        table = {
            name: {engine: [round(max(0.0, value) / decode, 4) for value in pair] for engine, pair in pairs.items()}
            for name, pairs in _table(cost, unit, pixels).items()
        }
    return {"machine": machine(), "versions": versions(), "decode_ms_per_megapixel": 1e3 * decode, "costs": table}


Cost = Callable[..., dict[str, float]]
Pair = dict[str, tuple[float, float]]


def _table(cost: Cost, base: dict[str, float], pixels: float) -> dict[str, Pair]:
    """For each entry and engine: CPU s per megapixel that goes in, and per megapixel that comes out."""
    table: dict[str, Pair] = {"decode": {engine: (base[engine] / pixels, 0.0) for engine in ENGINES}}
    region = cost([v2.RandomCrop(8), v2.PILToTensor()], fused=True)
    table["decode region"] = {"dali-cpu": (region["dali-cpu"] / pixels, 0.0)}
    out = SIDE * SIDE / 1e6
    whole = cost([v2.CenterCrop(SIDE), v2.PILToTensor()])
    table["uint8"] = {engine: (0.0, (whole[engine] - base[engine]) / out) for engine in ENGINES}
    scaled = cost([v2.CenterCrop(SIDE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    table["float32"] = {engine: (0.0, (scaled[engine] - base[engine]) / out) for engine in ENGINES}
    normal = cost(
        [v2.CenterCrop(SIDE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]
    )
    table["Normalize"] = {engine: (0.0, max(0.0, normal[engine] - scaled[engine]) / out) for engine in ENGINES}
    for kind, before in (("pil", []), ("tensor", TENSOR)):
        after = [] if before else TENSOR
        plain = cost([*before, v2.CenterCrop(8), *after])
        for one in (
            v2.RandomHorizontalFlip(),
            v2.RandomVerticalFlip(),
            v2.RandomRotation(15),
            v2.RandomAffine(15, (0.1, 0.1), (0.8, 1.2)),
            v2.ColorJitter(0.3, 0.3, 0.3),
            v2.GaussianBlur(5),
            v2.Grayscale(3),
            v2.RandomGrayscale(1.0),
        ):
            found = cost([*before, *[one] * COPIES, v2.CenterCrop(8), *after])
            table[f"{type(one).__name__}/{kind}"] = {
                engine: ((found[engine] - plain[engine]) / COPIES / pixels, 0.0) for engine in ENGINES
            }
        wide = cost([*before, v2.RandomResizedCrop(SIDE, (1.0, 1.0)), *after])
        thin = cost([*before, v2.RandomResizedCrop(SIDE // 2, (1.0, 1.0)), *after])
        tail = {engine: table["uint8"][engine][1] for engine in ENGINES}
        pair: Pair = {}
        for engine in ENGINES:
            # Two sizes of the result, one of what goes in: a line.
            big, small = wide[engine] - plain[engine] - tail[engine] * out, thin[engine] - plain[engine]
            small -= tail[engine] * out / 4
            slope = max(0.0, (big - small) / (0.75 * out))
            pair[engine] = (max(0.0, big - slope * out) / pixels, slope)
        table[f"Resize/{kind}"] = pair
    return table


def chain_cost(root: Path, chain: list[Any], passes: int, *, fused: bool = False) -> dict[str, float]:
    """CPU s of this process per image, of each engine."""
    dataset = ImageFolder(root, v2.Compose(chain))
    loader = switchable(DataLoader(dataset, batch_size=BATCH, num_workers=0), name="costs", seed=0)
    loader.fused_decode = fused
    loader.set(threads=1)
    found = {}
    for engine in ENGINES:
        switch_and_settle(loader, engine)
        least = float("inf")
        for _ in range(passes + 1):
            began = time.process_time()
            count = sum(len(batch[1]) for batch in loader)
            least = min(least, (time.process_time() - began) / count)
        found[engine] = least
    print(
        f"{' '.join(type(one).__name__ for one in chain):90}" + "".join(f"{1e3 * v:8.3f}" for v in found.values()),
        flush=True,
    )
    loader.release()
    return found


def _megapixels(root: Path) -> float:
    sizes = [image.size for image, _ in ImageFolder(root)]
    return float(sum(width * height for width, height in sizes)) / len(sizes) / 1e6


def write_costs() -> None:
    """Measure and put the table in its place in the package."""
    table = measure_costs()
    FILE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    for name, engines in table["costs"].items():
        print(
            f"{name:28}"
            + "".join(f"{engine} {pair[0]:7.3f} in {pair[1]:7.3f} out   " for engine, pair in engines.items())
        )
