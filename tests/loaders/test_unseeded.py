"""`switchable(seeded=False)`: a hand-written data set draws exactly what it draws in a plain DataLoader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import switchable
from kernel_monitor.errors import BackendUnavailable, MonitorError

from .conftest import seed_all

SIZE = 24


pytestmark = pytest.mark.usefixtures("without_dali")


class Drawing(Dataset[Any]):
    """Draws from all of the process's generators, and from one of its own."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(1)
        self.transform = v2.RandomErasing(p=0.5)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        image = self.transform(torch.ones(3, 4, 4))
        return index, random.random(), np.random.rand(), float(torch.rand(())), self.own.random(), image  # noqa: NPY002


class Batches(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        extra = random.random()
        return [(*self[index], extra) for index in indices]


def mixed(samples: list[Any]) -> Any:
    return [*torch.utils.data.default_collate(samples), random.random(), float(torch.rand(()))]


def plain(kind: Any, workers: int, **options: Any) -> Any:
    return DataLoader(kind(), 4, shuffle=True, num_workers=workers, collate_fn=mixed, **options)


def trained(loader: Any, epochs: int = 3) -> list[Any]:
    """What a loop gets and draws, that draws for each batch, as for a dropout."""
    seed_all()
    seen: list[Any] = []
    for _ in range(epochs):
        for batch in loader:
            drawn = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
            seen.append([value.tolist() if isinstance(value, torch.Tensor) else value for value in (*batch, *drawn)])
    return seen


@pytest.mark.parametrize("kind", [Drawing, Batches])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"persistent_workers": True}), (2, {"generator": None})],
    ids=["none", "two", "kept", "own generator"],
)
def test_draws_are_those_of_a_plain_loader(kind: Any, workers: int, options: dict[str, Any]) -> None:
    def made() -> Any:
        own = {name: torch.Generator().manual_seed(5) for name in options if name == "generator"}
        return plain(kind, workers, **{**options, **own})

    loader = switchable(made(), seeded=False)
    assert trained(loader) == trained(made())


def test_with_seeds_they_are_not() -> None:
    assert trained(switchable(plain(Drawing, 0))) != trained(plain(Drawing, 0))


def test_workers_that_are_started_in_an_epoch_draw_anew() -> None:
    loader = switchable(DataLoader(Drawing(), 2, num_workers=1, collate_fn=list), seeded=False)
    first = iter(loader)
    seen = [sample[1] for sample in next(first)]
    for workers in (2, 1, 3):
        loader.set(workers=workers)
        seen += [sample[1] for _ in range(3) for sample in next(first)]
    loader.release()
    seen += [sample[1] for batch in first for sample in batch]
    assert len(set(seen)) == len(seen) == SIZE
    assert loader.state()["lost"] == 0


def test_the_engines_of_dali_say_why_they_are_grey() -> None:
    loader = switchable(plain(Drawing, 0), seeded=False)
    assert not loader.backends["dali-cpu"].available
    assert "not seeded (seeded=False)" in str(loader.backends["dali-cpu"].reason)
    assert "seeded=False" in str(loader.backends["ray"].reason)
    with pytest.raises(BackendUnavailable, match=r"seeded=False"):
        loader.switch("dali-cpu")
    own = switchable(plain(Drawing, 0), seeded=False, dali=lambda sample: sample.encoded)
    assert "seeded=False" in str(own.backends["dali-cpu"].reason)


def test_a_resumed_epoch_keeps_its_order_and_says_that_draws_are_not_repeated() -> None:
    loader = switchable(plain(Drawing, 0), seeded=False)
    torch.manual_seed(8)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = [batch[0].tolist() for batch in iterator]
    assert "not repeated" not in loader.state()["status"]
    again = switchable(plain(Drawing, 0), seeded=False)
    again.load_state_dict(state)
    assert "what the data set draws is not repeated (seeded=False)" in again.state()["status"]
    assert [batch[0].tolist() for batch in again] == rest


@pytest.mark.parametrize("whole", [True, False], ids=["alone", "as a part"])
def test_a_known_data_set_refuses(folder: Path, whole: bool) -> None:
    known = ImageFolder(folder)
    dataset = known if whole else ConcatDataset([Drawing(), known])
    with pytest.raises(MonitorError, match=r"seeded=False\) is for data sets whose own __getitem__.*ImageFolder are"):
        switchable(DataLoader(dataset, 4), seeded=False)
