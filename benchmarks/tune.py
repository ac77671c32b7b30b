"""*Tune* against an exhaustive sweep of the same settings, on ten loads.

    python -m benchmarks.tune [--loads crop,disk,…] [--seconds 60] [--sweep 3] [--rounds 1] [--finals 4] [--json FILE]

Each load has a process of its own, with a loop on a thread that takes batches and then sleeps, as for a GPU, or
computes. First `monitor.tune()` runs in it. Then every setting of the grid (and what Tune chose, if that is none of
them) delivers to the same loop for some seconds, and for whole epochs with their beginnings; its rate is the loop's own
count of images over the time of these. The best of so many settings is partly the luckiest: so the first `FINALISTS` of
the sweep, Tune's choice and the setting from before deliver again, in `--finals` rounds of alternating order, and all
figures are from these. The share of the best is the rate of Tune's choice over that of the best finalist: a machine
that was slower meanwhile is no merit or fault of Tune.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from kernel_monitor import monitor
from kernel_monitor.diagnosis.trials import Candidate
from kernel_monitor.os_process import usable_cores

from .common import Bar, images, machine, report, spread, versions

BAR_SHARE, BAR_SECONDS = 0.95, 60.0
FINALISTS = 3
SETTLE_S = (1.0, 5.0)  # the least and the most that a setting of the sweep delivers before it is measured: an epoch,
# as workers that are started in mid-epoch are started once more for the next one
LONGEST = 4  # times as long as asked for a setting delivers until its epoch is whole; what is slower is no rival
LIMIT_S = 1_200.0  # of a load's process


class Load(NamedTuple):
    """A loop and its loader, as a user has it."""

    transforms: list[Any]
    step_ms: float = 10.0
    computes: bool = False  # the step takes a core for as long, rather than sleeping
    batch: int = 32
    workers: int = 2
    wait_ms: float = 0.0  # of a data set of one's own, for each sample: a slow disk
    generated: bool = False  # a data set without files


CROP = [transforms.RandomResizedCrop(160), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
LOADS = {
    "crop": Load(CROP),
    "no-workers": Load(CROP, workers=0),
    "many-workers": Load(CROP, workers=8),
    "slow-step": Load(CROP, step_ms=150),
    "small-batches": Load(CROP, step_ms=2, batch=4),
    "heavy": Load([*[transforms.RandomRotation(20)] * 6, *CROP]),
    "blur": Load([transforms.RandomResizedCrop(160), transforms.GaussianBlur(5), transforms.ToTensor()]),
    "computing-step": Load(CROP, step_ms=40, computes=True),
    "disk": Load(CROP, wait_ms=30, step_ms=20),
    "generated": Load([], workers=1, generated=True),
}


class SlowDisk(ImageFolder):  # type: ignore[misc]
    """Images whose files take some time to come."""

    wait_ms = 0.0

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_ms / 1e3)
        return super().__getitem__(index)


class Generated(Dataset[Any]):
    """Samples that are computed, 4 ms of a core each: no engine but torchvision's can give them."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> Any:
        until = time.thread_time() + 0.004  # by the wall clock, more workers than cores would seem to compute more
        noise = np.random.default_rng(index).random((3, 64, 64), np.float32)
        while time.thread_time() < until:
            noise = np.sqrt(noise)
        return torch.from_numpy(noise), index % 7


def loader_of(load: Load, root: Path) -> DataLoader[Any]:
    """Return a load's DataLoader, of epochs of 512 samples."""
    dataset: Any = Generated()
    if not load.generated:
        kind = SlowDisk if load.wait_ms else ImageFolder
        dataset = kind(str(root), transforms.Compose(load.transforms))
        if load.wait_ms:
            dataset.wait_ms = load.wait_ms
    sampler = RandomSampler(dataset, replacement=True, num_samples=512)
    return DataLoader(
        dataset,
        batch_size=load.batch,
        sampler=sampler,
        num_workers=load.workers,
        persistent_workers=load.workers > 0,
    )


class Loop:
    """The training loop: knows when each batch came."""

    def __init__(self, load: Load, loader: DataLoader[Any]) -> None:
        self.done = False
        self._times: list[float] = []  # of each batch
        self._per_epoch = len(loader)
        self._load, self._loader = load, loader
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        seconds, weights = self._load.step_ms / 1e3, torch.rand(192, 192)
        while True:
            for _ in self._loader:
                self._times.append(time.perf_counter())
                until = time.perf_counter() + seconds
                if self._load.computes:
                    while time.perf_counter() < until:
                        weights = torch.softmax(weights @ weights, 1)
                else:
                    time.sleep(seconds)
                if self.done:
                    return

    def end(self) -> None:
        self.done = True
        self._thread.join()

    def settle(self) -> None:
        """Wait until a setting that was just brought into use delivers as it will for long."""
        begun, before = time.perf_counter(), len(self._times)
        while (spent := time.perf_counter() - begun) < SETTLE_S[1]:
            if spent > SETTLE_S[0] and len(self._times) > before + self._per_epoch:
                break
            time.sleep(0.01)

    def rate(self, seconds: float) -> float:
        """Return images/s of at least the next seconds, over whole epochs: from a batch to a batch some epochs later.

        Over an epoch of slow loads all batches may come within a tenth of its time: parts of it tell nothing.
        """
        times, before = self._times, len(self._times)
        while self._thread.is_alive():
            time.sleep(0.001)
            count = len(times) - before - 1  # of batches after the first
            whole = count - count % self._per_epoch
            for batches, least in ((whole, seconds), (count, LONGEST * seconds)):
                if batches > 0 and (spent := times[before + batches] - times[before]) >= least:
                    return batches * self._load.batch / spent
        raise RuntimeError("the loop has ended by an error")


def grid(engines: set[str], cores: int, usual: int) -> Iterator[Candidate]:
    """Every setting that is compared with: more than a person would try."""
    for workers in sorted({0, 1, 2, 3, 4, cores, 2 * cores, 4 * cores, 8 * cores, 16 * cores}):
        yield Candidate("torchvision", workers, 2, None)
    for workers in sorted({max(1, cores // 2), cores, 2 * cores}):
        yield Candidate("torchvision", workers, 4, None)
    for engine in sorted(engines - {"torchvision", "synthetic", "ray"}):
        for threads in sorted({1, max(1, cores // 2), cores, cores + 1, 2 * cores}):
            yield Candidate(engine, usual, 2, threads)


def apply(candidate: Candidate) -> bool:
    """Bring a setting into use; returns False where that is not possible."""
    (loader,) = monitor.loaders
    monitor.switch(candidate.engine)
    until = time.monotonic() + 30
    while loader.backend != candidate.engine:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    monitor.set(workers=candidate.workers, prefetch=candidate.prefetch, threads=candidate.threads)
    return True


def sweep(loop: Loop, settings: Sequence[Candidate], rounds: int, seconds: float) -> dict[Candidate, list[float]]:
    """Return the images/s of each setting in each round, in alternating order; without those that cannot be had."""
    rates: dict[Candidate, list[float]] = {}
    for turn in range(rounds):
        for setting in settings if turn % 2 == 0 else settings[::-1]:
            if apply(setting):
                loop.settle()
                rates.setdefault(setting, []).append(loop.rate(seconds))
    return rates


def measure(name: str, root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tune, then sweep; return the figures."""
    torch.set_num_threads(1)
    load = LOADS[name]
    monitor.start(record=False)
    plain = loader_of(load, root)
    loop = Loop(load, plain)
    try:
        time.sleep(4)
        begun = time.monotonic()
        found = monitor.tune(seconds=options.seconds)
        took = time.monotonic() - begun
        assert found is not None
        (loader,) = monitor.loaders
        knobs = loader.state()["knobs"]
        threads = None if loader.backend == "torchvision" else knobs["threads"]
        chosen = Candidate(loader.backend, knobs["workers"] or 0, knobs["prefetch"], threads)
        kept_first = found["line"] is None
        base = Candidate("torchvision", load.workers, 2, None)
        engines = {backend for backend, state in loader.backends.items() if state.available}
        settings = list(dict.fromkeys([base, chosen, *grid(engines, usable_cores(), load.workers)]))
        swept = sweep(loop, settings, options.rounds, options.sweep)
        ranked = sorted(swept, key=lambda setting: -mean(swept[setting]))
        finalists = list(dict.fromkeys([chosen, base, *ranked[:FINALISTS]]))
        rates = sweep(loop, finalists, options.finals, options.sweep)
        state = loader.state()
    finally:
        loop.end()
        monitor.stop()
    means = {setting: mean(values) for setting, values in rates.items()}
    best = max(means, key=lambda setting: means[setting])
    return {
        "load": name,
        "seconds": took,
        "tried": len(found["runs"]),
        "chosen": chosen.label,
        "kept_first": kept_first,
        "best": best.label,
        "share": means[chosen] / means[best],
        "gain": means[chosen] / means[base],
        "best_gain": means[best] / means[base],
        "lost": state["lost"],
        "doubled": state["doubled"],
        "sweep": {setting.label: values for setting, values in swept.items()},
        "finals": {setting.label: values for setting, values in rates.items()},
        "sentence": found["sentence"],
    }


def main() -> int:
    """Measure and print; exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tune", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", default=",".join(LOADS), help="with commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="that Tune may take")
    parser.add_argument("--sweep", type=float, default=3.0, help="seconds of each setting in each round of the sweep")
    parser.add_argument("--rounds", type=int, default=1, help="of the sweep")
    parser.add_argument("--finals", type=int, default=4, help="rounds of the best settings")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the images of a load's own process
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.loads, options.one, options)))
        return 0
    print(f"{machine()}\n{versions()}")
    found = []
    with images(options.images, None) as root:
        for name in options.loads.split(","):
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.tune", "--loads", name, "--one", str(root)]
            command += ["--seconds", str(options.seconds), "--sweep", str(options.sweep)]
            command += ["--rounds", str(options.rounds), "--finals", str(options.finals)]
            with tempfile.TemporaryFile() as output:
                subprocess.run(command, stdout=output, timeout=LIMIT_S, check=True, env=dict(os.environ))
                output.seek(0)
                one = json.loads(output.read().splitlines()[-1])
            found.append(one)
            print(
                f"{name:>15}  {one['share']:.3f} of the best ({one['best']}; {one['best_gain']:.2f} × the first): "
                f"{one['chosen']}, {one['gain']:.2f} × the first, {one['tried']} tried in {one['seconds']:.0f} s, "
                f"{one['lost']} lost, {one['doubled']} doubled",
                flush=True,
            )
    shares = [one["share"] for one in found]
    median, low, high = spread(shares)
    print(f"share of the best: median {median:.3f}, quartiles {low:.3f} to {high:.3f}, least {min(shares):.3f}")
    bars = [
        Bar("the least share of the best setting's rate", min(shares), BAR_SHARE),
        Bar("the longest tune", max(one["seconds"] for one in found), BAR_SECONDS, " s", at_most=True),
        Bar("samples lost or doubled", sum(one["lost"] + one["doubled"] for one in found), 0, at_most=True),
    ]
    return report(bars, {"machine": machine(), "loads": found}, options.json)


if __name__ == "__main__":
    sys.exit(main())
