"""Common parts of the loaders' benchmarks: the images, the DataLoader to compare with, bars, machine and versions."""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from kernel_monitor._version import DALI_PACKAGES, __version__
from kernel_monitor.demo import demo_data
from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.sample.host.cpu import host_facts

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 224  # pixels, side of the loaders' images
SETTLED_S = 120.0  # longest that an engine may take to be ready


class Bar(NamedTuple):
    """A figure and its limit: it must be at least `limit`, or at most `limit` if `at_most`."""

    name: str
    value: float
    limit: float
    unit: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def line(self) -> str:
        direction = "at most" if self.at_most else "at least"
        figure = f"{self.value:.3f}" if self.limit < 2 else f"{self.value:.1f}"
        return f"{'met   ' if self.met else 'MISSED'}  {self.name}: {figure}{self.unit} ({direction} {self.limit:g})"


def report(bars: Sequence[Bar], figures: dict[str, Any], file: Path | None) -> int:
    """Print the bars, and write all figures as JSON if a file is named; return 1 if a bar is missed, else 0."""
    for bar in bars:
        print(bar.line())
    if file is not None:
        file.write_text(json.dumps({**figures, "bars": [bar._asdict() for bar in bars]}, indent=1) + "\n", "utf-8")
    return 0 if all(bar.met for bar in bars) else 1


@contextmanager
def images(count: int, directory: Path | None) -> Iterator[Path]:
    """A demo set of `count` JPEGs, in the page cache: in `directory`, where it stays, or in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-benchmark-") as temporary:
        root = demo_data(directory or Path(temporary, "images"), images=count)
        for file in root.glob("*/*.jpg"):
            file.read_bytes()
        yield root


def dataloader(
    root: Path, *, samples: int, batch: int, workers: int, replacement: bool = False, transform: Any = None
) -> DataLoader[Any]:
    """Return a typical user's DataLoader: crop, flip, normalise; persistent workers; `samples` per epoch."""
    dataset = ImageFolder(
        root,
        transform
        or transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(list(MEAN), list(STD)),
            ]
        ),
    )
    return DataLoader(
        dataset,
        batch_size=batch,
        sampler=RandomSampler(dataset, replacement=replacement, num_samples=samples),
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def switch_and_settle(loader: SwitchableLoader, backend: str) -> None:
    """Switch, and wait until the engine is ready.

    Raises:
        SystemExit: the engine cannot be used.
    """
    loader.switch(backend)
    until = time.monotonic() + SETTLED_S
    while loader.switch_state.preparing is not None:
        if time.monotonic() > until:
            raise SystemExit(f"{backend} was not ready within {SETTLED_S:g} s")
        time.sleep(0.001)
    if loader.switch_state.active != backend:
        raise SystemExit(loader.switch_state.status)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by the nearest rank, so that it is one of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1))]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the lower and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return median, lower, upper


def machine() -> str:
    """Return the processor, cores, system and GPU, in one line."""
    facts = host_facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{facts['cpu_model']}, {facts['logical_cpus']} logical cores, {platform.platform()}, {gpu}"


def versions() -> str:
    """Return the versions of all packages involved, in one line."""
    found = []
    for name in ("torch", "torchvision", "pillow", *DALI_PACKAGES):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name not in DALI_PACKAGES:
                found.append(f"no {name}")
    if not any("dali" in name for name in found):
        found.append("no DALI")
    return f"kernel_monitor {__version__}  Python {platform.python_version()}  {'  '.join(found)}"
