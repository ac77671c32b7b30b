"""The order is torch's own, and so is the state that torch's generators are left in."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import switchable

from .conftest import Make, seed_all, switch_to
from .data.torchvision_layouts import image
from .photos import FIXED, Located


class Dice(Sampler[int]):
    """A custom sampler: Python's and NumPy's generators, and a length."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(0, 23, 2))
        random.shuffle(order)
        yield from order
        yield from np.random.permutation(11)  # noqa: NPY002 - what people's samplers use

    def __len__(self) -> int:
        return 23


class Uneven(Sampler[list[int]]):
    """A custom batch sampler: batches of all sizes, indices more than once, in a batch and beyond; no length."""

    def __iter__(self) -> Iterator[list[int]]:
        for size in (1, 5, 0, 2, 7, 3):
            yield torch.randint(4, (size,)).tolist()


def remembered(worker: int) -> None:
    """A worker_init_fn: seen in the targets."""
    info: Any = get_worker_info()
    assert type(info.dataset) is Located
    info.dataset.target_transform = partial(_beside, 100 + worker)


def _beside(number: int, index: int) -> tuple[int, int]:
    return number, index


def seeded(index: int) -> tuple[int, int]:
    """A target transform that shows what torch's generator in the worker was seeded with."""
    info = get_worker_info()
    assert info is not None
    return info.seed, index


def as_pairs(samples: list[Any]) -> tuple[list[Any], torch.Tensor]:
    return [target for _, target in samples], torch.stack([one for one, _ in samples])


Options = Callable[[Any], dict[str, Any]]

SAMPLERS: dict[str, Options] = {
    "in order": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "shuffled, drop_last": lambda _: {"shuffle": True, "drop_last": True},
    "shuffled, generator": lambda _: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "random": lambda data: {"sampler": RandomSampler(data)},
    "random, fewer": lambda data: {"sampler": RandomSampler(data, num_samples=9)},
    "random, more than there are": lambda data: {"sampler": RandomSampler(data, num_samples=50)},
    "random with replacement": lambda data: {"sampler": RandomSampler(data, replacement=True, num_samples=70)},
    "random, own generator": lambda data: {"sampler": RandomSampler(data, generator=torch.Generator().manual_seed(8))},
    "sequential": lambda data: {"sampler": SequentialSampler(data), "drop_last": True},
    "weighted": lambda _: {"sampler": WeightedRandomSampler(torch.arange(1.0, 24.0).tolist(), 40)},
    "weighted without replacement": lambda _: {"sampler": WeightedRandomSampler([1.0] * 23, 20, replacement=False)},
    "subset random": lambda _: {"sampler": SubsetRandomSampler([3, 1, 20, 9, 9, 4])},
    "distributed 0 of 2": lambda data: {"sampler": DistributedSampler(data, 2, 0, seed=4)},
    "distributed 1 of 2": lambda data: {"sampler": DistributedSampler(data, 2, 1, seed=4, drop_last=True)},
    "custom sampler": lambda _: {"sampler": Dice()},
    "a list as sampler": lambda _: {"sampler": [5, 2, 2, 0, 22]},
    "batch_sampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 6, drop_last=True)},
    "custom batch_sampler": lambda _: {"batch_sampler": Uneven(), "collate_fn": as_pairs_or_nothing},
    "collate_fn": lambda _: {"shuffle": True, "collate_fn": as_pairs},
    "pin_memory": lambda _: {"shuffle": True, "pin_memory": True},
}
IN_WORKERS: dict[str, Options] = {
    "persistent": lambda _: {"shuffle": True, "persistent_workers": True},
    "persistent, generator": lambda _: {
        "shuffle": True,
        "persistent_workers": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "prefetch_factor": lambda _: {"shuffle": True, "prefetch_factor": 1},
    "timeout": lambda _: {"shuffle": True, "timeout": 60},
    "worker_init_fn": lambda _: {"shuffle": True, "worker_init_fn": remembered},
}


def as_pairs_or_nothing(samples: list[Any]) -> Any:
    return as_pairs(samples) if samples else ([], None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("numbered")
    return [image(root / f"{number}.jpg", seed=number) for number in range(23)]


def observed(loader: Any, count: int = 2) -> list[Any]:
    """What a user can see in some epochs: the targets, the images, all generators after each epoch."""
    seen: list[Any] = []
    for epoch in range(count):
        set_epoch = getattr(loader, "set_epoch", getattr(loader.sampler, "set_epoch", None))
        if set_epoch is not None and type(loader.sampler) is DistributedSampler:
            set_epoch(epoch)
        for batch in loader:
            images, targets = batch if isinstance(batch[0], torch.Tensor) else batch[::-1]
            seen.append([_plain(targets), None if images is None else images.numpy().tobytes()])
        generators = [loader.generator, getattr(loader.sampler, "generator", None)]
        seen.append([None if one is None else one.get_state().tolist() for one in generators])
        numpy_state: Any = np.random.get_state()  # noqa: NPY002
        seen.append([torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist(), numpy_state[2]])
    return seen


def _plain(targets: Any) -> Any:
    if isinstance(targets, torch.Tensor):
        return targets.tolist()
    return [_plain(target) for target in targets] if isinstance(targets, list) else targets


def both(files: list[Path], options: Options, workers: int, target_transform: Any = None) -> tuple[Any, Any]:
    shown = []
    for wrap in (lambda loader: loader, switchable):
        data = Located(files, FIXED, target_transform)
        seed_all()
        settings = {"num_workers": workers, **options(data)}
        if "batch_sampler" not in settings:
            settings["batch_size"] = 4
        loader = wrap(DataLoader(data, **settings))
        shown.append(observed(loader))
        if wrap is switchable:
            loader.release()
    return shown[0], shown[1]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_order_and_generators_are_those_of_plain_torch(files: list[Path], name: str, workers: int) -> None:
    plain, ours = both(files, SAMPLERS[name], workers)
    assert ours == plain


@pytest.mark.parametrize("name", IN_WORKERS)
def test_what_concerns_workers_is_honoured(files: list[Path], name: str) -> None:
    plain, ours = both(files, IN_WORKERS[name], 2)
    assert ours == plain


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.usefixtures("without_dali")  # once it has run, workers are kept, and with them their first seeds
def test_workers_are_seeded_as_torch_seeds_them(files: list[Path], persistent: bool, generator: bool) -> None:
    def options(_: Any) -> dict[str, Any]:
        own = {"generator": torch.Generator().manual_seed(3)} if generator else {}
        return {"shuffle": True, "persistent_workers": persistent, **own}

    plain, ours = both(files, options, 2, seeded)
    assert ours == plain


def test_the_way_to_start_workers_is_honoured(files: list[Path]) -> None:
    data = Located(files[:2], FIXED, _start_method)
    loader = switchable(DataLoader(data, 2, num_workers=1, multiprocessing_context="forkserver"))
    ((_, targets),) = loader
    assert list(targets) == ["forkserver"] * 2


def _start_method(_: int) -> str:
    return str(multiprocessing.get_start_method(allow_none=True))


def test_a_worker_that_is_late_is_raised_as_torch_raises_it(files: list[Path]) -> None:
    loader = switchable(DataLoader(Located(files, FIXED, _slow), 4, num_workers=1, timeout=1))
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(iter(loader))


def _slow(index: int) -> int:
    time.sleep(3)
    return index


def drawn(loader: Any) -> tuple[list[list[int]], list[float]]:
    """Targets of each batch of two epochs, and what torch draws after each."""
    batches, after = [], []
    for _ in range(2):
        batches += [targets.tolist() for _, targets in loader]
        after.append(float(torch.rand(())))
    return batches, after


@pytest.mark.parametrize("workers", [0, 2])
def test_order_is_the_same_on_dali(folder: Path, make: Make, workers: int) -> None:
    torch.manual_seed(11)
    plain = DataLoader(ImageFolder(folder, FIXED), batch_size=20, shuffle=True, num_workers=workers)
    expected = drawn(plain)
    torch.manual_seed(11)
    loader = make(transform=FIXED, batch_size=20, shuffle=True, num_workers=workers)
    switch_to(loader, "dali-cpu")
    assert drawn(loader) == expected
    assert loader.decoded(0) == loader.decoded(1) == {"dali-cpu": 243}
