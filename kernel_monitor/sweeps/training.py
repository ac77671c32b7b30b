"""The trainings of the presets: images, chain of transforms, loader, model and step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from ..errors import MonitorError
from ..loaders import SwitchableLoader, switchable
from ..os_process import usable_cores
from ..runtime import monitor
from .grid import Grid, Row

if TYPE_CHECKING:
    from torch import nn

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
ANGLE = 5  # degrees, either way
ENDLESS = 10_000_000  # samples of an epoch that no window comes to the end of
SEED = 0
RATE, MOMENTUM = 0.01, 0.9  # of SGD

Step = Callable[[Any], object]


@dataclass(frozen=True)
class Training:
    """A loader and what is done with each of its batches.

    Attributes:
        watched: the handle that ends the measuring of phases.
        keep: whether the loader is its owner's, who goes on with it.
        threads: of torch's operators before; 0: they were left as they are.
    """

    loader: SwitchableLoader
    step: Step
    watched: Any = None
    keep: bool = False
    threads: int = 0

    def end(self) -> None:
        """Give back workers, threads and memory."""
        if self.threads:
            torch.set_num_threads(self.threads)
        if self.watched is not None:
            self.watched.stop()
        if not self.keep:
            self.loader.release()


def device() -> torch.device:
    """Where presets train."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def chain(row: Row) -> Any:
    """The transforms of a row, the same objects for every engine.

    The crop comes before the normalisation, which changes neither a pixel nor the work of the reading: DALI then does
    the whole chain.
    """
    last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if row.chain == "crop first":
        first = [transforms.RandomResizedCrop(row.crop), transforms.RandomHorizontalFlip()]
        return transforms.Compose([*first, *last])
    augmented = [
        one
        for _ in range(row.load)
        for one in (
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.RandomRotation(ANGLE),
        )
    ]
    return transforms.Compose([*augmented, transforms.Resize(row.resize), transforms.CenterCrop(row.crop), *last])


def folder(data: Path) -> ImageFolder:
    """The images, a folder for each class.

    Raises:
        MonitorError: there are none.
    """
    try:
        return ImageFolder(data)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MonitorError(f"{data} is no folder of images in one folder per class ({error}).") from error


def prepare(row: Row, grid: Grid, data: Path) -> Training:
    """The training of one row of a preset.

    Raises:
        MonitorError: there is no such model, or the loader cannot be made.
    """
    where = device()
    images = ImageFolder(data, chain(row))
    if len(images) < row.batch:
        raise MonitorError(f"A batch of {row.batch} needs as many images, and there are {len(images)}.")
    # An epoch's beginning waits for the first batch: windows of some seconds lie within one epoch.
    sampler = RandomSampler(images, num_samples=None if grid.epochs else ENDLESS)
    workers = row.knobs["workers"]
    plain = DataLoader(
        images,
        batch_size=row.batch,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=row.knobs["prefetch"] if workers else None,
        persistent_workers=workers > 0,
        pin_memory=where.type == "cuda",
        drop_last=not grid.epochs,
    )
    loader = switchable(plain, name=row.name, seed=SEED)
    if loader.knobs.threads is not None:
        loader.set(threads=row.knobs["threads"], prefetch=row.knobs["prefetch"])
    threads = 0 if where.type == "cuda" else torch.get_num_threads()
    if threads:
        torch.set_num_threads(training_threads(usable_cores()))
    torch.manual_seed(SEED)
    network = model(str(row.model), len(images.classes)).to(where)
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM)
    return Training(loader, supervised(network, optimizer, where), monitor.watch(network, optimizer), threads=threads)


def training_threads(cores: int) -> int:
    """Threads of torch's operators where a preset trains on the CPU: half of the cores.

    With a thread on every core, operators wait for threads whose core a worker has: steps then vary fivefold.
    """
    return max(1, cores // 2)


def model(name: str, classes: int) -> nn.Module:
    """A model of torchvision with random weights.

    Raises:
        MonitorError: torchvision has none of that name.
    """
    try:
        made: nn.Module = models.get_model(name, weights=None, num_classes=classes)
    except ValueError as error:
        raise MonitorError(f"torchvision has no model {name!r}.") from error
    return made


def supervised(network: nn.Module, optimizer: torch.optim.Optimizer, where: torch.device | None) -> Step:
    """A step of supervised training: copy, forward, cross entropy, backward, update."""

    def step(batch: Any) -> None:
        images, labels = batch
        with monitor.phase("copy"):
            images = images.to(where, non_blocking=True)
            labels = labels.to(where, non_blocking=True)
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
