"""What each transform costs with torchvision and with DALI on the CPU: the table that a gain is reckoned with.

    python -m benchmarks.diagnose --costs

CPU seconds per image, of whole chains through the switchable loader's own engines: of the worker processes of
`torchvision` (two), and of this process with `dali-cpu` (two threads), each engine in a process of its own, because no
worker is forked once DALI runs. A transform's cost is the difference of two chains, with and without it (three of it
where one is little), so that memory is taken and given back as in a real chain: outside a worker it costs Pillow's
transforms up to four times more. The least of some passes over the same images counts: everything that disturbs adds;
the engines take turns with their passes, and each chain with one that is always the same, so that minutes in which the
machine is slower do not fall on one of them.
Written in units of decoding a megapixel with Pillow, so that machines of other speed share the table.
"""

from __future__ import annotations

import json
import math
import statistics
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
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.transforms.costs import FILE
from kernel_monitor.sample.host.facts import facts

from .common import machine, switch_and_settle, versions

BATCH = 32
MAKERS = ("AMD", "Intel", "ARM", "Apple")
ENGINES = ("torchvision", "dali-cpu")
TENSOR = [v2.PILToTensor()]
COPIES = 3
REFERENCE = [v2.CenterCrop(8), v2.PILToTensor()]
SIDE_BY_SIDE = 2
"""Workers, or threads: two that share a memory, and often a core, slow each other down as in a loop that waits."""
SIDE = 336
"""Pixels, side of what is delivered where the cost of delivering is measured: the larger, the clearer."""


def measure_costs(images: int = 96, passes: int = 6) -> dict[str, Any]:
    """Measure and return the table of this machine; see `kernel_monitor.loaders.transforms.costs`."""
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-costs-") as temporary:
        root = demo_data(Path(temporary, "images"), images=images)
        pixels = _megapixels(root)
        engines = [_Engine(name, root) for name in ENGINES]
        found: list[dict[str, float]] = []

        def measure(chain: list[Any], **_: Any) -> dict[str, float]:
            found.append(_relative(chain, engines, passes))
            return found[-1]

        _table(measure, pixels)
        reference = {one.name: statistics.median(one.references) for one in engines}
        for one in engines:
            one.end()
    each = iter(found)
    table = _table(lambda *_, **__: {name: value * reference[name] for name, value in next(each).items()}, pixels)
    decode = table["decode"]["torchvision"][0]
    costs = {
        name: {engine: [round(max(0.0, value) / decode, 4) for value in pair] for engine, pair in pairs.items()}
        for name, pairs in table.items()
    }
    return {"machine": machine(), "versions": versions(), "decode_ms_per_megapixel": 1e3 * decode, "costs": costs}


class _Engine:
    """A process that measures the chains of `_table` with one engine, a pass each time it is asked for one."""

    def __init__(self, name: str, root: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.costs", name, str(root)]
        self.name = name
        self.references: list[float] = []
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> str:
        """Send a word, return the line that answers it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the costs of {self.name} could not be measured")
        return answer

    def end(self) -> None:
        """Wait until it has gone; it has measured all chains."""
        self._process.communicate()


def _relative(chain: list[Any], engines: list[_Engine], passes: int) -> dict[str, float]:
    """What a chain costs by each engine, in units of `REFERENCE` beside it: the least of some passes of either."""
    least: dict[str, tuple[float, float]] = {}
    for one in engines:
        one.ask("start")
    for _ in range(passes):
        for one in engines:
            found = [float(value) for value in one.ask("pass").split()]
            known = least.get(one.name, (math.inf, math.inf))
            least[one.name] = (min(known[0], found[0]), min(known[1], found[1]))
    for one in engines:
        one.ask("stop")
        one.references.append(least[one.name][0])
    text = "   ".join(
        f"{name} {1e3 * cost:7.3f} ms beside {1e3 * beside:6.3f}" for name, (beside, cost) in least.items()
    )
    print(f"{text}   {' '.join(type(one).__name__ for one in chain)}", flush=True)
    return {name: cost / beside for name, (beside, cost) in least.items()}


def main(engine: str, root: Path) -> None:
    """Measure chains with one engine as they are asked for."""
    torch.set_num_threads(1)
    reference = loader_of(engine, root, REFERENCE)

    def cost(chain: list[Any], *, fused: bool = False) -> dict[str, float]:
        answer_passes(engine, root, chain, reference, fused=fused)
        return dict.fromkeys(ENGINES, 1.0)

    _table(cost, 1.0)
    reference.release()


Cost = Callable[..., dict[str, float]]
Pair = dict[str, tuple[float, float]]


def _table(cost: Cost, pixels: float) -> dict[str, Pair]:
    """For each entry and engine: CPU s per megapixel that goes in, and per megapixel that comes out."""
    base = cost(REFERENCE)
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


def answer_passes(
    engine: str, root: Path, chain: list[Any], reference: SwitchableLoader, *, fused: bool = False
) -> None:
    """To each line of stdin up to `stop`, answer with the CPU s per image of a pass of either chain by one engine."""
    loader = loader_of(engine, root, chain, fused=fused)

    def cost(one: SwitchableLoader) -> float:
        # The first pass, for "start", starts the engine and sees the files; what it cost is not counted.
        began = _cpu(one.worker_pids) if one.worker_pids or engine != "torchvision" else 0.0
        count = sum(len(batch[1]) for batch in one)
        return (_cpu(one.worker_pids) - began) / count

    for asked in sys.stdin:
        if asked == "stop\n":
            break
        print(cost(reference), cost(loader), flush=True)
    loader.release()
    print("stopped", flush=True)


def loader_of(engine: str, root: Path, chain: list[Any], *, fused: bool = False) -> SwitchableLoader:
    """Of a chain, with an engine."""
    workers = SIDE_BY_SIDE if engine == "torchvision" else 0
    loader = switchable(
        DataLoader(
            ImageFolder(root, v2.Compose(chain)),
            batch_size=BATCH,
            num_workers=workers,
            persistent_workers=bool(workers),
        ),
        name="costs",
        seed=0,
    )
    if not workers:
        loader.fused_decode = fused
        loader.set(threads=SIDE_BY_SIDE)
        switch_and_settle(loader, engine)
    return loader


def _cpu(workers: list[int]) -> float:
    """CPU s so far: of the workers, in ns from the scheduler; of this process where there are none."""
    if not workers:
        return time.process_time()
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) for pid in workers) / 1e9


def _megapixels(root: Path) -> float:
    sizes = [image.size for image, _ in ImageFolder(root)]
    return float(sum(width * height for width, height in sizes)) / len(sizes) / 1e6


def write_costs(*, again: bool = False) -> None:
    """Measure and put the table in its place in the package, beside those of other makers of processors.

    Args:
        again: take the mean with what earlier runs measured on processors of this maker, instead of its place.
    """
    table = {**measure_costs(), "runs": 1}
    tables = json.loads(FILE.read_text("utf-8"))
    model = facts()["cpu_model"]
    maker = next((one for one in MAKERS if one.lower() in model.lower()), model)
    if again and maker in tables:
        table = mean(tables[maker], table)
    FILE.write_text(json.dumps({**tables, maker: table}, indent=1) + "\n", "utf-8")
    for name, engines in table["costs"].items():
        print(
            f"{name:28}"
            + "".join(f"{engine} {pair[0]:7.3f} in {pair[1]:7.3f} out   " for engine, pair in engines.items())
        )


def mean(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Of the runs behind two tables of one maker: a single run's differences of chains are a tenth off now and then."""
    runs = known["runs"] + new["runs"]
    share = float(known["runs"] / runs)

    def both(before: float, now: float) -> float:
        return share * before + (1 - share) * now

    costs = {
        name: {
            engine: [
                round(both(before, now), 4) for before, now in zip(known["costs"][name][engine], pair, strict=True)
            ]
            for engine, pair in engines.items()
        }
        for name, engines in new["costs"].items()
    }
    decode = both(known["decode_ms_per_megapixel"], new["decode_ms_per_megapixel"])
    return {**new, "decode_ms_per_megapixel": decode, "costs": costs, "runs": runs}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
