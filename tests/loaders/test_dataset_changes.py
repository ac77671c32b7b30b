"""A data set that is changed between epochs or in the middle of one: every batch is as plain torch would deliver it."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.engines import fork_server

from .conftest import dali_begins, draw_photo, switch_to

BATCH = 16  # samples; 243 make 16 batches
ENGINES = ["torchvision", "dali-cpu"]


def fixed(size: int) -> v1.Compose:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])


def thousand(target: int) -> int:
    return target + 1000


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
@pytest.mark.usefixtures("without_dali")
def test_with_workers(data: ImageFolder, engine: str, persistent: bool) -> None:
    """From the other engine to this one in the middle of every epoch and back."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    expected = reference(data, **options)
    loader = switchable(DataLoader(data, BATCH, **options))
    other = ENGINES[1 - ENGINES.index(engine)]
    loader.switch(other)

    def between(epoch: int, number: int) -> None:
        if number == 5:
            switch_to(loader, engine)
        if number == 13 and epoch < 2:
            switch_to(loader, other)

    assert progressive(loader, data, between) == expected
    assert {switch.target for switch in loader.history} == set(ENGINES)
    assert [click.outcome for click in loader.clicks] == ["done"] * len(loader.clicks)


class Local(ImageFolder):
    def __reduce__(self) -> Any:
        raise TypeError("this data set stays here")


def sizes(loader: Iterable[Any]) -> set[int]:
    return {images.shape[-1] for images, _ in loader}


@pytest.mark.usefixtures("without_dali")
def test_a_data_set_that_refuses_to_be_pickled_goes_to_new_workers(folder: Path) -> None:
    data = Local(folder, fixed(48))
    loader = switchable(DataLoader(data, BATCH, num_workers=1))
    loader.switch("dali-cpu")
    assert sizes(loader) == {48}
    data.transform = fixed(64)
    iterator = iter(loader)
    next(iterator)
    switch_to(loader, "torchvision")
    assert sizes(iterator) == {64}
    assert loader.backend == "torchvision"
    data.transform = fixed(32)
    assert sizes(loader) == {32}
    assert len(loader.worker_pids) == 1


@pytest.mark.usefixtures("without_dali")
def test_where_no_worker_can_be_started_the_loop_goes_on_without(folder: Path) -> None:
    """The data set is never the old one, and the way back to workers is tried at each epoch."""
    data = ImageFolder(folder, fixed(48))
    loader = switchable(DataLoader(data, BATCH, num_workers=1))
    loader.switch("dali-cpu")
    assert sizes(loader) == {48}
    switch_to(loader, "torchvision")
    assert sizes(loader) == {48}
    data.transform, data.lock = fixed(64), threading.Lock()  # made after the fork server, which cannot have it
    expected = [targets.tolist() for _, targets in DataLoader(data, BATCH)]
    for _ in range(2):
        iterator = iter(loader)
        assert [targets.tolist() for _, targets in iterator] == expected
        assert sizes(loader) == {64}
        assert loader.backend == "torchvision"
        assert loader.worker_pids == []
        assert (
            "torchvision computes in the process of the training, without workers: no new workers can be"
            in (loader.state()["status"])
        )
        assert "cannot pickle '_thread.lock' object" in loader.state()["status"]
    data.lock = None
    assert sizes(loader) == {64}
    assert len(loader.worker_pids) == 1
    server = fork_server.server()
    assert server is not None
    server.close()
    data.transform = fixed(32)
    assert sizes(loader) == {32}
    assert "the process from which workers are forked has ended" in loader.state()["status"]


@pytest.mark.usefixtures("without_dali")
def test_a_change_while_another_iteration_is_alive(folder: Path) -> None:
    """As `it = iter(loader)` has it: the old one is given up only after the new one was made."""
    data = ImageFolder(folder, fixed(48))
    loader = switchable(DataLoader(data, BATCH, num_workers=1))
    iterator = iter(loader)
    assert next(iterator)[0].shape[-1] == 48
    data.transform = fixed(64)
    iterator = iter(loader)
    assert sizes(iterator) == {64}


@pytest.mark.usefixtures("without_dali")
def test_workers_turned_in_the_middle_see_what_the_others_saw(folder: Path) -> None:
    data = ImageFolder(folder, fixed(48))
    loader = switchable(DataLoader(data, BATCH, num_workers=1))
    iterator = iter(loader)
    next(iterator)
    data.transform = fixed(64)
    loader.set(workers=2)
    assert sizes(iterator) == {48}
    assert len(loader.worker_pids) == 2
    assert sizes(loader) == {64}


@pytest.mark.parametrize("change", ["opener", "length", "paths", "view"])
def test_other_changes_reach_dali(folder: Path, tmp_path: Path, change: str) -> None:
    data = ImageFolder(folder, fixed(16))
    indices = list(range(60))
    whole = Subset(data, indices)
    loader = switchable(DataLoader(whole, 20))
    switch_to(loader, "dali-cpu")
    before = torch.cat([images for images, _ in loader])
    assert loader.backend == "dali-cpu"
    if change == "opener":
        data.loader = inverting
    elif change == "length":
        indices.extend([3, 5])
    elif change == "paths":
        other = tmp_path / "other.jpg"
        draw_photo(other, np.random.default_rng(9), 70, 90)
        data.samples[7] = (str(other), 2)
    else:
        indices.reverse()
    expected = torch.cat([images for images, _ in DataLoader(whole, 20)])
    images = torch.cat([images for images, _ in loader])
    assert images.shape == expected.shape
    assert (images - expected).abs().mean() < 0.01
    assert images.shape != before.shape or (images - before).abs().mean() > 0.001
    assert loader.state()["lost"] == 0
    assert loader.backend == ("torchvision" if change == "opener" else "dali-cpu")


@pytest.mark.parametrize("engine", ENGINES)
def test_without_workers(data: ImageFolder, engine: str) -> None:
    expected = reference(data)
    loader = switchable(DataLoader(data, BATCH))
    switch_to(loader, engine)
    assert progressive(loader, data, lambda *_: None) == expected
    assert loader.backend == engine


def test_without_workers_across_a_switch_in_the_middle(data: ImageFolder) -> None:
    expected = reference(data)
    loader = switchable(DataLoader(data, BATCH))

    def between(_: int, number: int) -> None:
        if number in (3, 9):
            switch_to(loader, ENGINES[number == 3])

    assert progressive(loader, data, between) == expected
    assert len(loader.history) == 6


@pytest.mark.usefixtures("without_dali")
def test_a_process_with_many_open_files_gets_workers(folder: Path) -> None:
    """`select` takes no descriptor above 1,023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 1400:
        pytest.skip("this machine's hard limit of descriptors is below 1,400")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1400), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        dali_begins()
        loader = switchable(DataLoader(ImageFolder(folder, fixed(48)), BATCH, num_workers=1))
        assert sizes(loader) == {48}
        assert len(loader.worker_pids) == 1
        assert "without workers" not in loader.state()["status"]
        loader.release()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
