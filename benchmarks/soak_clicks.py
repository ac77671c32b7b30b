"""A training that is clicked at random for 15 minutes: are its samples exact, and does anything of it grow?

    python -m benchmarks.soak_clicks [--minutes 15] [--seed N] [--json FILE] [--readings FILE]

One process trains in its main thread on three DataLoaders in turn: a plain one without workers, a plain one with two
kept workers, a `switchable` one with two workers. Another thread does what users do, at random: clicks on every engine
that can run, knobs, Tune and its undo, Ctrl-C; the loop itself forks a child now and then.
Every epoch is compared with what its samples are by torchvision alone: each index once (in an interrupted epoch at most
once), each with its own label and pixels. Every five seconds memory, descriptors, threads and children are read. What
an engine holds comes and goes with it, so that growth is told from the least reading of each minute: the Theil-Sen
slope over the whole minutes after the first third, and its 95 % interval, by SciPy. A bar is met if all of the interval
is below it. `--readings FILE` judges what an earlier run wrote with `--json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from scipy.stats import theilslopes
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from kernel_monitor import monitor, switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import MonitorError

from .common import Bar, machine, report, versions

IMAGES = 96
BATCH = 8
PIXELS_DIFFER = 0.02  # of 1, mean of a sample: DALI's resize rounds otherwise
READ_S = 5.0
CHILD_S = 20.0  # longest that a forked child may take to end
FORK_EVERY = 400  # batches, in the mean


class Indexed(ImageFolder):  # type: ignore[misc]
    """An ImageFolder whose target is the number of the sample."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, _ = super().__getitem__(index)
        return image, index


class Reading(NamedTuple):
    """What the training's process holds at one moment."""

    second: float
    resident: float  # MB of the process itself
    descriptors: float
    threads: float
    children: float  # processes below it, at any depth


class Soak:
    """The training, what was done to it, and what was wrong with it."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.random = random.Random(seed)
        self.until = time.monotonic() + seconds
        chain = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()])
        root = demo_data(folder / "images", images=IMAGES)
        self.dataset = Indexed(str(root), transform=chain)
        self.expected = torch.stack([self.dataset[index][0] for index in range(len(self.dataset))])
        plain: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
        kept: DataLoader[Any] = DataLoader(self.dataset, num_workers=2, persistent_workers=True, **plain)
        wrapped = switchable(DataLoader(self.dataset, num_workers=2, **plain), name="wrapped")
        self.loaders: dict[str, Any] = {"plain": DataLoader(self.dataset, **plain), "kept": kept, "wrapped": wrapped}
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.faults: list[str] = []
        self.interruptible = threading.Event()

    # -- the loop's thread

    def train(self) -> None:
        while time.monotonic() < self.until:
            for name, loader in self.loaders.items():
                for _ in range(3):
                    if time.monotonic() < self.until:
                        self.epoch(name, loader)

    def epoch(self, name: str, loader: Any) -> None:
        """Run one epoch; an interrupt ends it early, as Ctrl-C ends a cell."""
        seen: list[int] = []
        whole = False
        try:
            for images, indices in loader:
                # Not before the first batch: plain torch loses kept workers where an interrupt comes as they begin.
                self.interruptible.set()
                self.check(name, images, indices)
                seen += indices.tolist()
                time.sleep(0.002)
                if self.random.random() < 1 / FORK_EVERY:
                    self.interruptible.clear()
                    self.fork(name)
            whole = True
        except KeyboardInterrupt:
            self.counts["interrupts that ended an epoch"] += 1
        finally:
            self.interruptible.clear()
        self.counts["epochs"] += 1
        self.counts["samples"] += len(seen)
        twice = [index for index, times in Counter(seen).items() if times > 1]
        if twice or (whole and len(seen) != IMAGES):
            self.fault(f"{name}: {len(seen)} samples in a {'whole' if whole else 'cut'} epoch, twice: {twice}")

    def check(self, name: str, images: torch.Tensor, indices: torch.Tensor) -> None:
        apart = (images - self.expected[indices]).abs().mean(dim=(1, 2, 3))
        if bool((apart > PIXELS_DIFFER).any()):
            self.fault(f"{name}: pixels of {indices[apart > PIXELS_DIFFER].tolist()} differ by {apart.max():.3f}")

    def fork(self, name: str) -> None:
        """Fork a child that computes and ends; not by `sys.exit`, which with plain torch ends the parent's workers."""
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if int(torch.ones(10).sum()) == 10 else 1)
        self.counts["forks"] += 1
        until = time.monotonic() + CHILD_S
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                if status:
                    self.fault(f"{name}: a forked child ended with {os.waitstatus_to_exitcode(status)}")
                return
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.fault(f"{name}: a forked child had not ended after {CHILD_S:g} s")

    def fault(self, text: str) -> None:
        self.faults.append(text)
        print(f"WRONG  {text}", flush=True)

    # -- the clicking thread

    def click(self) -> None:
        choose = random.Random(self.random.random())
        while time.monotonic() < self.until:
            time.sleep(choose.uniform(0.2, 3.0))
            live = monitor.loaders
            if not live:
                continue
            one = choose.choice(live)
            action = choose.choices((self.switch, self.knobs, self.tune, self.interrupt), (12, 4, 1, 2))[0]
            try:
                action(choose, one)
                self.counts[f"{action.__name__}"] += 1
            except MonitorError as error:
                self.refused[str(error)[:100]] += 1
        monitor.cancel_diagnosis()

    def switch(self, choose: random.Random, one: Any) -> None:
        engines = ["torchvision", "threads", "dali-cpu", "synthetic"]
        engine = choose.choice(engines[:3])  # synthetic replaces samples, so that nothing could be compared
        monitor.switch(engine, loader=one.id)

    def knobs(self, choose: random.Random, one: Any) -> None:
        name = choose.choice(("workers", "prefetch", "threads"))
        monitor.set(loader=one.id, **{name: choose.randint(1, 3)})

    def tune(self, choose: random.Random, one: Any) -> None:
        monitor.tune(one.id, seconds=15, wait=False)
        time.sleep(choose.uniform(1.0, 8.0))
        if choose.random() < 0.5:
            monitor.cancel_diagnosis()
        else:
            monitor.undo_tune()

    def interrupt(self, _choose: random.Random, _one: Any) -> None:
        if self.interruptible.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    # -- the reading thread

    def read(self, readings: list[Reading]) -> None:
        process = psutil.Process()
        began = time.monotonic()
        while (now := time.monotonic()) < self.until:
            with process.oneshot():
                readings.append(
                    Reading(
                        now - began,
                        process.memory_info().rss / 1e6,
                        process.num_fds(),
                        process.num_threads(),
                        len(process.children(recursive=True)),
                    )
                )
            if len(readings) % 12 == 1:
                line = ", ".join(f"{field} {value:.0f}" for field, value in readings[-1]._asdict().items())
                print(f"{line}; {dict(self.counts)}", flush=True)
            time.sleep(READ_S)


def slope(readings: Sequence[Reading], field: str) -> tuple[float, float, float]:
    """Return by how much a field grows in a minute, and the 95 % interval of that."""
    least: dict[int, float] = {}
    for reading in readings:
        value, minute = getattr(reading, field), int(reading.second // 60)
        if 60 * minute >= readings[-1].second / 3:
            least[minute] = min(value, least.get(minute, value))
    found = theilslopes([*least.values()], [*least])
    return float(found.slope), float(found.low_slope), float(found.high_slope)


def bars(readings: Sequence[Reading], faults: Sequence[str]) -> list[Bar]:
    """Return the figures and their limits; prints each slope with its interval."""
    found = [Bar("faults", len(faults), 0, at_most=True)]
    for field, limit, unit in (
        ("resident", 1.0, " MB"),
        ("descriptors", 0.5, ""),
        ("threads", 0.5, ""),
        ("children", 0.5, ""),
    ):
        estimate, lower, upper = slope(readings, field)
        print(f"{field}: {estimate:+.2f}{unit} a minute ({lower:+.2f} to {upper:+.2f})")
        found.append(Bar(f"{field}, upper end of the interval", upper, limit, f"{unit} a minute", at_most=True))
    return found


def main() -> int:
    """Run and print; the exit status is 1 if a sample was wrong or something grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak_clicks", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--readings", type=Path, help="run nothing: judge the figures of an earlier run")
    options = parser.parse_args()
    if options.readings is not None:
        earlier = json.loads(options.readings.read_text("utf-8"))
        return report(bars([Reading(*one) for one in earlier["readings"]], earlier["faults"]), earlier, options.json)
    print(f"{machine()}\n{versions()}\nseed {options.seed}", flush=True)
    logging.basicConfig(level=logging.ERROR)
    readings: list[Reading] = []
    own = os.getpid()
    folder = tempfile.mkdtemp(prefix="kernel-monitor-soak-")
    try:
        os.environ["KERNEL_MONITOR_SESSIONS"] = str(Path(folder, "sessions"))
        monitor.start()
        soak = Soak(Path(folder), options.seed, 60 * options.minutes)
        threads = [
            threading.Thread(target=soak.click, name="clicks", daemon=True),
            threading.Thread(target=soak.read, args=(readings,), name="readings", daemon=True),
        ]
        for thread in threads:
            thread.start()
        soak.train()
        for thread in threads:
            thread.join(30)
        switches = sum(len(getattr(live, "history", ())) for live in monitor.loaders)
        monitor.stop()
    finally:
        if os.getpid() == own:  # a forked child passes here as well
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{dict(soak.counts)}, {switches} switches took place\nrefused: {dict(soak.refused)}")
    print(f"{len(soak.faults)} faults" + "".join(f"\n  {fault}" for fault in soak.faults[:20]))
    return report(
        bars(readings, soak.faults),
        {"readings": readings, "counts": soak.counts, "refused": soak.refused, "seed": options.seed,
         "faults": soak.faults, "machine": machine(), "versions": versions()},
        options.json,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
