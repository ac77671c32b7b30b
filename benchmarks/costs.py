"""What each transform costs with torchvision and with DALI on the CPU: the table that a gain is reckoned with.

    python -m benchmarks.diagnose --costs

CPU seconds per image, of whole chains through the switchable loader's own engines: of the worker process of
`torchvision` (one), and of this process with `dali-cpu` (one thread), each engine in a process of its own, because no
worker is forked once DALI runs. A transform's cost is the difference of two chains, with and without it (three of it
where one is little), so that memory is taken and given back as in a real chain: outside a worker it costs Pillow's
transforms up to four times more. The least of some passes over the same images counts: everything that disturbs adds.
Written in units of decoding a megapixel with Pillow, so that machines of other speed share the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def measure_costs(images: int = 96, passes: int = 5) -> dict[str, Any]:
    """Measure and return the table; see `kernel_monitor.loaders.transforms.costs`."""
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-costs-") as temporary:
        root = demo_data(Path(temporary, "images"), images=images)
        pixels = _megapixels(root)
        found = {engine: iter(_in_process(engine, root, passes)) for engine in ENGINES}
    table = _table(lambda _chain, **_: {engine: next(found[engine]) for engine in ENGINES}, pixels)
    decode = table["decode"]["torchvision"][0]
    costs = {
        name: {engine: [round(max(0.0, value) / decode, 4) for value in pair] for engine, pair in pairs.items()}
        for name, pairs in table.items()
    }
    return {"machine": machine(), "versions": versions(), "decode_ms_per_megapixel": 1e3 * decode, "costs": costs}


def _in_process(engine: str, root: Path, passes: int) -> list[float]:
    """The costs of all chains in the order in which `_table` asks for them, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.costs", engine, str(root), str(passes)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the costs of {engine} could not be measured")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(engine: str, root: Path, passes: int) -> None:
    """Measure all chains with one engine; prints them as JSON."""
    torch.set_num_threads(1)
    found: list[float] = []

    def cost(chain: list[Any], *, fused: bool = False) -> dict[str, float]:
        found.append(chain_cost(engine, root, chain, passes, fused=fused))
        print(f"{engine:12}{1e3 * found[-1]:8.3f} ms  {' '.join(type(one).__name__ for one in chain)}", flush=True)
        return dict.fromkeys(ENGINES, found[-1])

    _table(cost, _megapixels(root))
    print(json.dumps(found))


Cost = Callable[..., dict[str, float]]
Pair = dict[str, tuple[float, float]]


def _table(cost: Cost, pixels: float) -> dict[str, Pair]:
    """For each entry and engine: CPU s per megapixel that goes in, and per megapixel that comes out."""
    base = cost([v2.CenterCrop(8), v2.PILToTensor()])
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


def chain_cost(engine: str, root: Path, chain: list[Any], passes: int, *, fused: bool = False) -> float:
    """CPU s per image of one engine."""
    dataset = ImageFolder(root, v2.Compose(chain))
    workers = 1 if engine == "torchvision" else 0
    loader = switchable(
        DataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=bool(workers)),
        name="costs",
        seed=0,
    )
    if not workers:
        loader.fused_decode = fused
        loader.set(threads=1)
        switch_and_settle(loader, engine)
    least = float("inf")
    for number in range(passes + 1):
        began = _cpu(loader.worker_pids) if number else 0.0
        count = sum(len(batch[1]) for batch in loader)
        if number:  # the first starts the engine and sees the files
            least = min(least, (_cpu(loader.worker_pids) - began) / count)
    loader.release()
    return least


def _cpu(workers: list[int]) -> float:
    """CPU s so far: of the workers, in ns from the scheduler; of this process where there are none."""
    if not workers:
        return time.process_time()
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) for pid in workers) / 1e9


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


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
