"""Workers on other machines: the cost of the transport, their scaling, the cost of a swap, and their memory.

    python -m benchmarks.remote [--parts rate scaling swaps memory] [--seconds 10] [--rounds 4]

Everything runs on this machine, in a Ray cluster on loopback: the figures describe the engine, not a network.

rate     images/s with as many workers on a node as the DataLoader has, against `torchvision`, in alternate windows.
scaling  a sample sleeps 20 ms and does no work, so that this machine's cores do not limit it: 1, 2, 4 and 8 workers on
         4 nodes; the efficiency is the rate divided by that of so many sleepers.
swaps    there and back in a loop that sleeps for each batch, as `benchmarks.swap` measures it.
memory   memory of the kernel and the driver process, and of the object stores, over 5,000 batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.os_process import usable_cores
from kernel_monitor.ray.cluster import VARIABLE
from tests.remote.running import RunningCluster

from . import swap
from .common import Bar, dataloader, images, machine, percentile, report, switch_and_settle, versions

PARTS = ("rate", "scaling", "swaps", "memory")
SLEEP_S, SLEEPERS = 0.020, (1, 2, 4, 8)
WARM_S = 3.0
BATCHES, SETTLED = 5_000, 500
STORE_MB = 2_000  # size of the object store where the rate is measured; Ray's default is 30 % of the memory


class Sleeping(Dataset[Any]):
    """A data set whose samples take 20 ms of waiting and no processor time."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLEEP_S)
        return torch.zeros(3, 64, 64, dtype=torch.uint8), index


class Plain(Dataset[Any]):
    """A data set whose samples have 150 KB and take almost no time."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 224, 224), index % 256, dtype=torch.uint8), index


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=4, help="windows of each engine")
    parser.add_argument("--swaps", type=int, default=40)
    parser.add_argument("--images", type=int, default=512, help="files")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="of the DataLoader")
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}\nall nodes on this machine, on loopback\n")
    bars: list[Bar] = []
    figures: dict[str, Any] = {}
    with images(options.images, options.data) as root:
        options.data = root
        for part in options.parts:
            # Two nodes on one machine pass each batch on over the network's own code, which its two cores pay for.
            cluster = RunningCluster(4, 2) if part == "scaling" else RunningCluster(0, 0, options.workers, STORE_MB)
            os.environ[VARIABLE] = cluster.address
            try:
                bars += globals()[part](options, figures)
            finally:
                cluster.stop()
    return report(bars, figures, options.json)


def images_per_s(loader: SwitchableLoader, batches: Any, seconds: float) -> float:
    """Return the rate of a loop that does nothing, over so many seconds after `WARM_S`."""
    until = time.monotonic() + WARM_S
    while time.monotonic() < until:
        next(batches)
    samples, began = loader.state()["samples"], time.monotonic()
    while time.monotonic() - began < seconds:
        next(batches)
    return (loader.state()["samples"] - samples) / (time.monotonic() - began)


def rate(options: argparse.Namespace, figures: dict[str, Any]) -> list[Bar]:
    plain = dataloader(options.data, samples=10_000_000, batch=32, workers=options.workers, replacement=True)
    loader = switchable(plain, seed=0)
    batches = iter(loader)
    next(batches)
    found: dict[str, list[float]] = {"torchvision": [], "ray": []}
    for _ in range(options.rounds):
        for name, rates in found.items():
            switch_and_settle(loader, name)
            if name == "ray":
                await_workers(loader, options.workers, batches)
            rates.append(images_per_s(loader, batches, options.seconds))
    checked(loader)
    loader.release()
    ratios = [there / here for here, there in zip(found["torchvision"], found["ray"], strict=True)]
    for name, rates in found.items():
        print(f"{name:12} {statistics.median(rates):8.0f} images/s ({min(rates):.0f} to {max(rates):.0f})")
    figures["rate"] = found
    return [Bar(f"images/s, ray / torchvision, {options.workers} workers", statistics.median(ratios), 0.9)]


def scaling(options: argparse.Namespace, figures: dict[str, Any]) -> list[Bar]:
    loader = switchable(DataLoader(Sleeping(), batch_size=8, num_workers=1, prefetch_factor=2), seed=0)
    batches = iter(loader)
    next(batches)
    switch_and_settle(loader, "ray")
    bars = []
    for workers in SLEEPERS:
        loader.set(workers=workers)
        await_workers(loader, workers, batches)
        found = images_per_s(loader, batches, options.seconds)
        efficiency = found * SLEEP_S / workers
        nodes = sum(node.workers > 0 for node in loader.nodes)
        print(f"{workers} workers on {nodes} nodes, a sleep of 20 ms a sample: {found:.0f} samples/s")
        figures[f"scaling {workers}"] = found
        bars.append(Bar(f"efficiency of {workers} workers, samples that sleep", efficiency, 0.9))
    checked(loader)
    loader.release()
    return bars


def swaps(options: argparse.Namespace, figures: dict[str, Any]) -> list[Bar]:
    run = argparse.Namespace(
        data=options.data, batch=4, workers=options.workers, swaps=options.swaps, step_ms=20.0, seed=0, json=None
    )
    cold = swap.cold_swap(run, "torchvision", "ray")
    print(f"cold: {cold['click_ms'] / 1000:.1f} s from the click to the first batch, stall {cold['stall_ms']:.0f} ms")
    loop = swap.Run(run, ("torchvision", "ray"))
    loop.go()
    bars = []
    for source, target in (("torchvision", "ray"), ("ray", "torchvision")):
        seen = [one for one in loop.swaps() if (one.source, one.target) == (source, target)][1:]
        clicks, stalls = [1000 * one.click for one in seen], [1000 * one.stall for one in seen]
        median, tail = statistics.median(clicks), percentile(clicks, 0.95)
        print(f"{source} to {target}: {len(seen)} swaps, click {median:.0f} ms median, {tail:.0f} ms p95")
        figures[f"{source} to {target}"] = {"click_ms": clicks, "stall_ms": stalls}
        bars.append(Bar(f"{source} to {target}, stall p95", percentile(stalls, 0.95), 20.0, " ms", at_most=True))
    figures["cold"] = cold
    return bars


def memory(options: argparse.Namespace, figures: dict[str, Any]) -> list[Bar]:
    loader = switchable(DataLoader(Plain(), batch_size=32, num_workers=options.workers), seed=0)
    batches = iter(loader)
    next(batches)
    switch_and_settle(loader, "ray")
    engine: Any = loader.pool["ray"].engine
    driver = psutil.Process(engine._driver.pid)
    seen: dict[str, list[float]] = {"kernel": [], "driver": [], "stores": []}
    for number in range(BATCHES + 1):
        next(batches)
        if number >= SETTLED and number % SETTLED == 0:
            seen["kernel"].append(psutil.Process().memory_info().rss / 1e6)
            seen["driver"].append(driver.memory_full_info().uss / 1e6)
            seen["stores"].append(psutil.virtual_memory().shared / 1e6)
    checked(loader)
    loader.release()
    for name, values in seen.items():
        print(f"{name:8} MB after every {SETTLED} batches: {', '.join(f'{value:.0f}' for value in values)}")
    figures["memory"] = seen
    return [
        Bar(f"growth of {name} over {BATCHES - SETTLED} batches", values[-1] - values[0], 30.0, " MB", at_most=True)
        for name, values in seen.items()
    ]


def await_workers(loader: SwitchableLoader, workers: int, batches: Any) -> None:
    """Take batches until so many workers deliver; raise SystemExit if they do not come."""
    until = time.monotonic() + 90
    while sum(node.workers for node in loader.nodes) != workers:
        if time.monotonic() > until:
            raise SystemExit(f"{workers} workers are wanted: {loader.backends['ray'].note}")
        next(batches)


def checked(loader: SwitchableLoader) -> None:
    """Raise SystemExit if a sample was lost or doubled, or if another engine had to take over."""
    counts = loader.epochs()[-1]
    if counts["lost"] or counts["doubled"] or "failed" in loader.switch_state.status:
        raise SystemExit(f"{counts['lost']} lost, {counts['doubled']} doubled; {loader.switch_state.status}")


if __name__ == "__main__":
    sys.exit(main())
