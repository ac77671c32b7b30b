"""The order is torch's own, and so is the state that torch's generators are left in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, WeightedRandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import switchable

from .conftest import Make, augmented, settle

FIXED = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])


def epochs(loader: Any, count: int = 2) -> tuple[list[list[int]], list[float]]:
    """Targets of each batch, and what torch draws after each epoch."""
    batches, after = [], []
    for _ in range(count):
        batches += [targets.tolist() for _, targets in loader]
        after.append(float(torch.rand(())))
    return batches, after


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {},
        {"shuffle": True, "drop_last": True},
        {"shuffle": True, "persistent": True},
        {"sampler": "weighted"},
        {"batch_sampler": True},
        {"shuffle": True, "generator": True},
    ],
    ids=str,
)
def test_order_and_generators_are_those_of_plain_torch(folder: Path, workers: int, options: dict[str, Any]) -> None:
    dataset = ImageFolder(folder, FIXED)

    def build() -> DataLoader[Any]:
        settings: dict[str, Any] = {"batch_size": 20, "num_workers": workers, **options}
        if settings.pop("persistent", False) and workers:
            settings["persistent_workers"] = True
        if settings.get("generator"):
            settings["generator"] = torch.Generator().manual_seed(3)
        if settings.get("sampler"):
            settings["sampler"] = WeightedRandomSampler(torch.arange(1.0, 244.0).tolist(), 100)
        if settings.get("batch_sampler"):
            del settings["batch_size"]
            settings["batch_sampler"] = BatchSampler(RandomSampler(dataset), 20, False)
        return DataLoader(dataset, **settings)

    torch.manual_seed(11)
    expected = epochs(build())
    torch.manual_seed(11)
    loader = switchable(build())
    assert epochs(loader) == expected
    assert len(loader) == len(build())
    loader.release()


@pytest.mark.parametrize("workers", [0, 2])
def test_order_is_the_same_on_dali(folder: Path, make: Make, workers: int) -> None:
    torch.manual_seed(11)
    plain = DataLoader(ImageFolder(folder, FIXED), batch_size=20, shuffle=True, num_workers=workers)
    expected = epochs(plain)
    torch.manual_seed(11)
    loader = make(transform=FIXED, batch_size=20, shuffle=True, num_workers=workers)
    loader.switch("dali-cpu")
    if workers == 0:
        settle(loader)
    assert epochs(loader) == expected
    assert loader.decoded(0) == loader.decoded(1) == {"dali-cpu": 243}


@pytest.mark.parametrize("workers", [0, 2])
def test_computing_samples_does_not_disturb_the_users_generators(make: Make, workers: int) -> None:
    loader = make(transform=v1.Compose([v1.RandomRotation(9), *augmented().transforms]), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = torch.get_rng_state()
    next(iterator)
    assert torch.equal(torch.get_rng_state(), state)


def test_subsets_of_subsets_and_batch_structure(folder: Path) -> None:
    dataset = ImageFolder(folder, FIXED)
    view = Subset(Subset(dataset, range(0, 243, 3)), [5, 1, 40, 2, 0])
    plain = next(iter(DataLoader(view, batch_size=4)))
    ours = switchable(DataLoader(view, batch_size=4))
    for backend in ("torchvision", "dali-cpu"):
        ours.switch(backend)
        settle(ours)
        batch = next(iter(ours))
        assert ours.backend == backend
        assert type(batch) is list
        assert type(batch[0]) is torch.Tensor
        assert type(batch[1]) is torch.Tensor
        assert batch[0].shape == plain[0].shape
        assert batch[0].dtype == plain[0].dtype
        assert torch.equal(batch[1], plain[1])
        assert batch[1].dtype == plain[1].dtype
        assert (batch[0] - plain[0]).abs().mean() * 255 < 0.5
    ours.release()


def test_own_collate_and_target_transform_are_honoured_by_both(folder: Path) -> None:
    dataset = ImageFolder(folder, FIXED, target_transform=lambda target: {"label": target * 10})
    results = []
    for backend in ("torchvision", "dali-cpu"):
        loader = switchable(DataLoader(dataset, batch_size=5, collate_fn=tuple))
        loader.switch(backend)
        settle(loader)
        batch = next(iter(loader))
        assert type(batch) is tuple
        assert len(batch) == 5
        results.append([target for _, target in batch])
        loader.release()
    assert results[0] == results[1]
    assert results[0][0] == {"label": 0}
