"""The cost of a data set of the user's own class, and the engines compared on four kinds of them.

    python -m benchmarks.own_data [--rounds 6] [--images 256] [--samples 1024] [--workers 2]
    python -m benchmarks.own_data --kinds segmentation detection multi-crop

The class for classification is a typical one: it opens a file, converts it to RGB, applies its transform and returns
the image with a label. `torchvision` is compared with the plain DataLoader over the same class, and `dali-cpu` with
`dali-cpu` over ImageFolder, in turns within one process, as in `benchmarks.loaders`. A dry run is timed on one thread.
The other kinds (`benchmarks.own_tasks`) compare both with the plain DataLoader.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.data.own_dataset import OwnDataset

from .common import Bar, dataloader, images, machine, report, spread, switch_and_settle, versions
from .loaders import Contestant, epoch
from .own_tasks import KINDS, SEGMENTATION, compare
from .task_data import street_scenes

CLASSIFICATION = "classification"
SCENES = 128  # images of 512 x 1024 with masks, for segmentation
DRY_RUN_US = 40.0
CALLS = 5_000


class Photos(Dataset[Any]):
    """A typical user's data set: a list of files with labels."""

    def __init__(self, samples: list[tuple[str, int]], transform: Any) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, label


class PhotosAsDict(Photos):
    """A data set whose samples are dictionaries that also contain the file's path."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return {"image": image, "label": label, "file": self.samples[index][0]}


def dry_run_us(dataset: Dataset[Any]) -> float:
    """Return the microseconds of a dry run: the median of ten rounds."""
    own = OwnDataset(dataset)
    own.learn()
    if own.refusal is not None:
        raise SystemExit(f"{type(dataset).__name__} {own.refusal}")
    found = []
    for _ in range(10):
        began = time.perf_counter()
        for call in range(CALLS // 10):
            own.read(call % len(dataset))  # type: ignore[arg-type]
        found.append(1e6 * (time.perf_counter() - began) / (CALLS // 10))
    return statistics.median(found)


def main() -> int:
    """Measure and print; exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=(CLASSIFICATION, *KINDS), default=(CLASSIFICATION, *KINDS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--samples", type=int, default=1024, help="an epoch, of classification")
    parser.add_argument("--batch", type=int, default=32, help="of classification")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}")
    bars: list[Bar] = []
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        root = stack.enter_context(images(options.images, options.data))
        others = [kind for kind in options.kinds if kind != CLASSIFICATION]
        if others:
            temporary = stack.enter_context(TemporaryDirectory(prefix="kernel-monitor-benchmark-"))
            scenes = street_scenes(Path(temporary), SCENES if SEGMENTATION in others else 0)
            bars, figures = compare(others, root, scenes, options.workers, options.rounds)
        if CLASSIFICATION in options.kinds:
            found = compare_classification(root, options)
            bars += found[0]
            figures |= found[1]
    return report(bars, figures, options.json)


def compare_classification(root: Path, options: argparse.Namespace) -> tuple[list[Bar], dict[str, Any]]:
    """Measure and print; return the bars and the figures."""
    lead = 2 * options.workers + 4
    folder = dataloader(root, samples=options.samples, batch=options.batch, workers=options.workers)
    listed: ImageFolder = folder.dataset
    costs = {kind.__name__: dry_run_us(kind(listed.samples, listed.transform)) for kind in (Photos, PhotosAsDict)}
    field: dict[str, Contestant] = {}
    made = []

    def plain(kind: type[Photos]) -> DataLoader[Any]:
        dataset = kind(listed.samples, listed.transform)
        sampler = RandomSampler(dataset, num_samples=options.samples)
        return DataLoader(
            dataset,
            batch_size=options.batch,
            sampler=sampler,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
        )

    def add(name: str, loader: Iterable[Any], backend: str | None = None) -> None:
        switched = switchable(loader) if backend is not None else loader  # type: ignore[arg-type]
        if backend is not None:
            made.append(switched)

        def prepare() -> None:
            if backend not in (None, "torchvision"):
                switch_and_settle(switched, str(backend))  # type: ignore[arg-type]

        field[name] = Contestant(prepare, lambda: iter(switched), _count)

    add("DataLoader, Photos", plain(Photos))
    add("torchvision, Photos", plain(Photos), "torchvision")
    add("DataLoader, PhotosAsDict", plain(PhotosAsDict))
    add("torchvision, PhotosAsDict", plain(PhotosAsDict), "torchvision")
    add("dali-cpu, ImageFolder", folder, "dali-cpu")
    add("dali-cpu, Photos", plain(Photos), "dali-cpu")
    add("dali-cpu, PhotosAsDict", plain(PhotosAsDict), "dali-cpu")
    try:
        for one in field.values():  # all workers are started before DALI's threads run
            for _ in one.batches():
                pass
        for one in field.values():
            epoch(one, lead, options.samples)
        rates: dict[str, list[float]] = {name: [] for name in field}
        for number in range(options.rounds):
            for name in list(field)[:: 1 if number % 2 else -1]:
                rates[name].append(epoch(field[name], lead, options.samples).rate)
            print(f"round {number + 1}/{options.rounds}  " + "  ".join(f"{n} {r[-1]:,.0f}" for n, r in rates.items()))
    finally:
        for loader in made:
            loader.release()  # type: ignore[attr-defined]
    print(f"\n{'images/s':30}{'median':>9}{'quartiles':>18}")
    for name, found in rates.items():
        median, lower, upper = spread(found)
        print(f"{name:30}{median:9,.0f}{f'{lower:,.0f} to {upper:,.0f}':>18}")
    bars = [Bar(f"dry run, {name}", cost, DRY_RUN_US, " µs a sample", at_most=True) for name, cost in costs.items()]
    for ours, other, limit in (
        ("torchvision, Photos", "DataLoader, Photos", 0.98),
        ("torchvision, PhotosAsDict", "DataLoader, PhotosAsDict", 0.98),
        ("dali-cpu, Photos", "dali-cpu, ImageFolder", 0.95),
        ("dali-cpu, PhotosAsDict", "dali-cpu, ImageFolder", 0.95),
    ):
        median, lower, upper = spread([a / b for a, b in zip(rates[ours], rates[other], strict=True)])
        bars.append(Bar(f"{ours} / {other}, quartiles {lower:.3f} to {upper:.3f}", median, limit))
    return bars, {"rates": rates, "dry_run_us": costs}


def _count(batch: Any) -> int:
    image: torch.Tensor = batch["image"] if isinstance(batch, dict) else batch[0]
    return len(image)


if __name__ == "__main__":
    sys.exit(main())
