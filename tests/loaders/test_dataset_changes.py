"""A data set that is changed between epochs or in the middle of one: every batch is as plain torch would deliver it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.engines import torch_engine

from .conftest import settle

BATCH = 16  # samples; 243 make 16 batches
ENGINES = ["torchvision", "dali-cpu"]


def fixed(size: int) -> v1.Compose:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])


def thousand(target: int) -> int:
    return target + 1000


def doubled(batch: list[Any]) -> Any:
    images, targets = torch.utils.data.default_collate(batch)
    return images, targets * 2


def inverting(path: str) -> Image.Image:
    return Image.eval(pil_loader(path), lambda value: 255 - value)


@pytest.fixture
def data(folder: Path, tmp_path: Path) -> ImageFolder:
    """Every ninth file is one that DALI is not given (a GIF), so that both paths have a share in each batch."""
    dataset = ImageFolder(folder, fixed(48))
    odd = tmp_path / "odd.gif"
    with Image.open(dataset.samples[0][0]) as image:
        image.save(odd)
    dataset.samples = [(str(odd), t) if n % 9 == 4 else (path, t) for n, (path, t) in enumerate(dataset.samples)]
    dataset.imgs = dataset.samples
    return dataset


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process in which DALI has not run yet."""
    monkeypatch.setattr(torch_engine, "_dali_runs", threading.Event())


Seen = list[tuple[int, list[int]]]  # of each batch: the images' size, the targets


def progressive(loader: Iterable[Any], dataset: ImageFolder, between: Callable[[int, int], None]) -> list[Seen]:
    """Three epochs with changes before the second, in its middle, and in the middle of the third."""
    epochs = []
    for epoch in range(3):
        if epoch == 1:
            dataset.transform = fixed(64)
            dataset.target_transform = thousand
            dataset.samples[0] = dataset.samples[1]
        seen: Seen = []
        for number, (images, targets) in enumerate(loader):
            assert images.shape[-1] == images.shape[-2]
            seen.append((images.shape[-1], targets.tolist()))
            if (epoch, number) == (1, 7):
                dataset.transform = fixed(32)
            if (epoch, number) == (2, 7):
                dataset.transform.transforms[0].size = (24, 24)
                dataset.target_transform = None
            between(epoch, number)
        epochs.append(seen)
    return epochs


def reference(folder_data: ImageFolder, **options: Any) -> list[Seen]:
    copy = ImageFolder(folder_data.root, fixed(48))
    copy.samples = list(folder_data.samples)
    return progressive(DataLoader(copy, BATCH, **options), copy, lambda *_: None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.usefixtures("fresh")
def test_with_workers(data: ImageFolder, engine: str, persistent: bool) -> None:
    """From the other engine to this one in the middle of every epoch and back."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    expected = reference(data, **options)
    loader = switchable(DataLoader(data, BATCH, **options))
    other = ENGINES[1 - ENGINES.index(engine)]
    loader.switch(other)

    def between(epoch: int, number: int) -> None:
        if number == 5:
            loader.switch(engine)
            settle(loader)
        if number == 13 and epoch < 2:
            loader.switch(other)
            settle(loader)

    assert progressive(loader, data, between) == expected
    assert {switch.target for switch in loader.history} == set(ENGINES)
    assert [click.outcome for click in loader.clicks] == ["done"] * len(loader.clicks)
    loader.release()


@pytest.mark.parametrize("engine", ENGINES)
def test_without_workers(data: ImageFolder, engine: str) -> None:
    expected = reference(data)
    loader = switchable(DataLoader(data, BATCH))
    loader.switch(engine)
    settle(loader)
    assert progressive(loader, data, lambda *_: None) == expected
    assert loader.backend == engine
    loader.release()


def test_without_workers_across_a_switch_in_the_middle(data: ImageFolder) -> None:
    expected = reference(data)
    loader = switchable(DataLoader(data, BATCH))

    def between(_: int, number: int) -> None:
        if number in (3, 11):
            loader.switch(ENGINES[number == 3])
            settle(loader)

    assert progressive(loader, data, between) == expected
    assert len(loader.history) == 6
    loader.release()
