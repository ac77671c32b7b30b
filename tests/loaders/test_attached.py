"""Loops of many forms over attached DataLoaders: the batches of plain torch, and after a click the same order.

Each script runs without the monitor, then with attached loaders, then with clicks; it returns all that it saw.
"""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    default_collate,
    get_worker_info,
)
from torchvision import transforms as v1

from kernel_monitor.loaders import takeover
from kernel_monitor.loaders.random_streams import Defaults

from .attached_loops import attaching, click, engines_of, wait_until_ready
from .conftest import make_folder, seed_all, violent
from .photos import Located
from .test_as_torch import Batches, Told

pytestmark = pytest.mark.usefixtures("without_dali")

Click = Callable[..., None]
Script = Callable[[list[Path], Click], list[Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("attached"), 12).glob("*/*.jpg"))


def no_click(loader: Any, backend: str = "dali-cpu") -> None:
    """Do nothing, in place of a click."""


def newest() -> Any:
    """The engines of the loader that was iterated last, for the first time."""
    return takeover.live()[-1]


def drawn() -> tuple[float, ...]:
    return float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002 - what people's code draws from


def loop(loader: Any, click: Click, *, at: tuple[int, ...] = (1,), backends: tuple[str, ...] = ("dali-cpu",)) -> Any:
    """Return what one epoch of a loop saw; the loop draws random numbers, too, and clicks after the batches `at`."""
    seen: list[Any] = []
    clicks = itertools.cycle(backends)
    for number, (_, targets) in enumerate(loader):
        seen.append((targets.tolist(), drawn()))
        if number in at:
            click(loader, next(clicks))
        elif number - 1 in at and click is not no_click:
            wait_until_ready(loader)
    return seen


SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def add_script(name: str, make: Callable[[list[Path]], tuple[DataLoader[Any], Any]]) -> None:
    """Add a script of four epochs: clicks in the first and after the second, and a click back in the third."""

    def run(files: list[Path], click: Click) -> list[Any]:
        loader, sampler = make(files)
        seen: list[Any] = []
        for epoch in range(4):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(7 * epoch)
            clicks = {0: (0,), 2: (1,)}.get(epoch, ())
            for number, (_, targets) in enumerate(loader):
                seen.append((targets.tolist(), drawn()))
                if hasattr(sampler, "loss"):
                    sampler.loss = int(targets.sum()) + int(torch.randint(50, ()))
                if number in clicks:
                    click(loader, "torchvision" if epoch == 2 else "dali-cpu")
                elif click is not no_click:
                    wait_until_ready(loader)
            if epoch == 1:
                click(loader, "dali-cpu")
        return seen

    SCRIPTS[name] = run


class Counting(Sampler[int]):
    """A sampler that draws its order to find its length, as those that sort samples into batches do."""

    loss = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Reused(Sampler[list[int]]):
    """A batch sampler that yields the same list object each time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for start in range(0, self.length, 2):
            batch[:] = [start, start + 1]
            yield batch


def _of(options: Callable[[Any], dict[str, Any]]) -> Callable[[list[Path]], tuple[DataLoader[Any], Any]]:
    def make(files: list[Path]) -> tuple[DataLoader[Any], Any]:
        dataset = Located(files)
        found = options(dataset)
        return DataLoader(dataset, **found), found.get("sampler", found.get("batch_sampler"))

    return make


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def init(worker: int) -> None:
    torch.manual_seed(worker)


OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "shuffled": lambda _: {"batch_size": 2, "shuffle": True},
    "drop_last": lambda _: {"batch_size": 5, "shuffle": True, "drop_last": True},
    "own generator": lambda _: {"batch_size": 2, "shuffle": True, "generator": generator()},
    "replacement": lambda of: {
        "batch_size": 2, "sampler": RandomSampler(of, replacement=True, num_samples=15, generator=generator())
    },
    "distributed": lambda of: {"batch_size": 2, "sampler": DistributedSampler(of, 2, 0, seed=5)},
    "listed": lambda _: {"batch_sampler": [[0, 1], [5, 4, 3], [7], [2, 1]]},
    "told": lambda of: {"batch_size": 3, "sampler": Told(len(of))},
    "drawing": lambda of: {"batch_sampler": Batches(len(of))},
    "counting": lambda of: {"batch_size": 2, "sampler": Counting(len(of))},
    "reused": lambda of: {"batch_sampler": Reused(len(of))},
}  # fmt: skip
WORKERS: dict[str, dict[str, Any]] = {
    "shuffled": {"num_workers": 2},
    "own generator": {"num_workers": 2, "persistent_workers": True, "worker_init_fn": init},
    "told": {"num_workers": 1, "prefetch_factor": 1},
    "drawing": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 1},
}
for _name, _options in OPTIONS.items():
    add_script(_name, _of(_options))
for _name, _more in WORKERS.items():
    add_script(f"{_name}, workers", _of(lambda of, name=_name, more=_more: {**OPTIONS[name](of), **more}))  # type: ignore[misc]


@script
def nested_loops_over_one_loader(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 4, shuffle=True)
    seen = []
    for number, (_, outer) in enumerate(loader):
        seen.append((outer.tolist(), loop(loader, click, at=(1,) if number == 0 else ())))
    return seen


@script
def two_iterators_of_one_loader(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 3, shuffle=True)
    seen = []
    for number, ((_, ours), (_, theirs)) in enumerate(zip(loader, loader, strict=True)):
        seen.append((ours.tolist(), theirs.tolist(), drawn()))
        if number == 1:
            click(loader)
    return [*seen, *loop(loader, no_click)]


def negative(samples: list[Any]) -> Any:
    images, targets = default_collate(samples)
    return images, -targets


@script
def two_loaders_of_one_data_set_in_one_line(files: list[Path], click: Click) -> list[Any]:
    dataset = Located(files)
    one: Any = DataLoader(dataset, 3, shuffle=True)
    other: Any = DataLoader(dataset, 2, collate_fn=negative)
    seen = []
    for number, ((_, ours), (_, theirs)) in enumerate(zip(one, other, strict=False)):
        seen.append((ours.tolist(), theirs.tolist(), drawn()))
        if number == 0:
            click(one)
    return [*seen, *loop(other, no_click)]


@script
def two_loaders_of_one_data_set_in_one_function(files: list[Path], click: Click) -> list[Any]:
    dataset = Located(files)
    train: Any = DataLoader(dataset, 3, shuffle=True)
    test: Any = DataLoader(dataset, 2, collate_fn=negative)
    return [loop(loader, click if loader is train else no_click) for _ in range(3) for loader in (train, test)]


@script
def a_loader_made_anew_for_each_epoch(files: list[Path], click: Click) -> list[Any]:
    dataset = Located(files)
    seen = []
    for epoch in range(4):
        loader: Any = DataLoader(dataset, 2, shuffle=True)
        for number, (_, targets) in enumerate(loader):
            seen.append((targets.tolist(), drawn()))
            if epoch == 0 and number == 1:
                click(loader)
            elif click is not no_click:
                wait_until_ready(loader)
        if click is not no_click:
            newest = engines_of(loader).epochs()[-1]
            assert (newest["epoch"], newest["samples"], newest["decoded"]["dali-cpu"] > 5) == (epoch, 12, True)
    return seen


ANEW: dict[str, Callable[[Any, int], Any]] = {
    "other batches": lambda of, n: DataLoader(of, (2, 3, 5, 1)[n], shuffle=n != 2, drop_last=n == 2),
    "other samplers": lambda of, n: DataLoader(
        of, batch_size=2, sampler=(RandomSampler(of, generator=generator()), Told(12), [3, 1, 2], range(5, 12))[n]
    ),
    "own batches": lambda of, n: DataLoader(of, batch_sampler=Batches(12) if n % 2 else [[0, 1], [5, 4, 3]]),
    "workers": lambda of, n: DataLoader(of, 2, shuffle=True, num_workers=1),
    "other workers": lambda of, n: DataLoader(of, 2, shuffle=True, num_workers=n % 2),
    "kept workers": lambda of, n: DataLoader(of, 2, shuffle=True, num_workers=1, persistent_workers=True),
    "another collate": lambda of, n: DataLoader(of, 2, shuffle=True, collate_fn=negative if n % 2 else None),
    "collate anew": lambda of, n: DataLoader(
        of, 2, collate_fn=lambda samples: (negative(samples)[0], negative(samples)[1] + n)
    ),
    "distributed": lambda of, n: DataLoader(of, 2, sampler=DistributedSampler(of, 2, 0, seed=5)),
}


def _anew(name: str) -> None:
    """A script in which a function makes and iterates a loader for each epoch; a click in the first one."""

    def run(files: list[Path], click: Click) -> list[Any]:
        dataset = Located(files)

        def one(epoch: int) -> Any:
            return loop(ANEW[name](dataset, epoch), click if epoch == 0 else no_click, at=(0,))

        return [[one(epoch), drawn()] for epoch in range(4)]

    SCRIPTS[f"made anew, {name}"] = run


for _name in ANEW:
    _anew(_name)


@script
def loaders_that_no_variable_holds(files: list[Path], click: Click) -> list[Any]:
    dataset = Located(files)

    def batches(*, stop: int = 99) -> list[Any]:
        seen = []
        for number, (_, targets) in enumerate(DataLoader(dataset, 2, shuffle=True)):
            seen.append((targets.tolist(), drawn()))
            if click is not no_click and not clicked:
                clicked.append(newest().switch("dali-cpu"))
            if number == stop:
                break
        return seen

    clicked: list[None] = []
    return [batches(stop=stop) for stop in (9, 2, 9, 0, 3, 9)]


@script
def loaders_of_one_place_at_the_same_time(files: list[Path], click: Click) -> list[Any]:
    dataset = Located(files)

    def batches(click: Click) -> Iterator[list[int]]:
        for _, targets in DataLoader(dataset, 2, shuffle=True):
            yield targets.tolist()
            if click is not no_click and not clicked:
                clicked.append(newest().switch("dali-cpu"))

    clicked: list[None] = []
    seen = [*batches(click), *batches(no_click)]
    return [*seen, *zip(batches(no_click), batches(no_click), strict=True), *batches(no_click)]


@script
def a_data_set_that_changes_between_loaders(files: list[Path], click: Click) -> list[Any]:
    seen = []
    for workers in (0, 1):
        dataset = Located(files)
        for epoch in range(5):
            loader: Any = DataLoader(dataset, 2, shuffle=True, num_workers=workers)
            seen += loop(loader, click if epoch == 0 else no_click)
            seen += [tuple(images.shape) for images, _ in loader]
            if epoch == 1:
                dataset.target_transform = operator.neg
                dataset.transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
            elif epoch == 3:
                dataset.paths = dataset.paths[:7]
    return seen


@script
def a_loop_that_breaks_off(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True)
    seen = []
    for stop in (1, 3, 0, 2, 9):
        for number, (_, targets) in enumerate(loader):
            seen.append((targets.tolist(), drawn()))
            if number == 1:
                click(loader)
            if number == stop:
                break
    return seen


@script
def first_batches_and_unused_iterators(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True)
    seen = [(next(iter(loader))[1].tolist(), drawn())]
    click(loader)
    for _ in range(3):
        seen.append((next(iter(loader))[1].tolist(), drawn()))
        iter(loader)
        seen.append(([], drawn()))
    return [*seen, *loop(loader, no_click)]


@script
def an_unused_iterator_of_kept_workers(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True, num_workers=1, persistent_workers=True)
    seen = loop(loader, click)
    iter(loader)
    return [*seen, *loop(loader, no_click), *loop(loader, click, backends=("torchvision",)), *loop(loader, no_click)]


class Broken(Located):
    """A data set with an unreadable sample, and with an interrupt at another (an engine computes that batch again)."""

    interrupts = False

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise ValueError("sample 3 cannot be read")
        if index == 2 and self.interrupts:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def loop_past_exceptions(loader: Any, click: Click, at: int) -> list[Any]:
    """Return what a loop saw that continues after exceptions, of which type and message are compared."""
    seen: list[Any] = []
    batches = iter(loader)
    for number in range(14):
        try:
            seen.append(next(batches)[1].tolist())
        except StopIteration:
            seen.append("end")
        except (ValueError, KeyboardInterrupt) as error:
            seen.append((type(error).__name__, str(error).strip().splitlines()[-1:]))
        if number == at:
            click(loader)
    return seen


@script
def exceptions_of_the_data_set_before_a_click(files: list[Path], click: Click) -> list[Any]:
    dataset = Broken(files)
    dataset.interrupts = True
    return loop_past_exceptions(DataLoader(dataset, 1), click, 6)


@script
def exceptions_of_the_data_set_after_a_click(files: list[Path], click: Click) -> list[Any]:
    return loop_past_exceptions(DataLoader(Broken(files), 1), click, 1)


@script
def exceptions_in_workers_around_a_click(files: list[Path], click: Click) -> list[Any]:
    return [loop_past_exceptions(DataLoader(Broken(files), 1, num_workers=1), click, at) for at in (0, 2, 6)]


class Ending(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        if self.epoch == 2:
            raise ValueError("no order")
        for index in range(8):
            if index == 5 and self.epoch != 4:
                raise ValueError("no more of the order")
            yield index


@script
def exceptions_of_a_sampler(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 1, sampler=Ending())
    return [loop_past_exceptions(loader, click, 1) for _ in range(4)]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))

    def __len__(self) -> int:
        return 7


@script
def an_iterable_style_data_set_that_tells_too_few(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Endless(), 2)
    seen: list[Any] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            for batch in loader:
                seen.append((batch.tolist(), drawn()))
                click(loader)
        seen.append(len(warned))
    return seen


@script
def single_samples(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), batch_size=None, shuffle=True)
    seen: list[Any] = []
    for _ in range(2):
        for _, target in loader:
            seen.append((target, drawn()))
            click(loader)
    return seen


class Worked(Located):
    """A data set whose samples hold their index, and the number and the seed of the worker."""

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return super().__getitem__(index)[0], index, -1 if info is None else info.id, 0 if info is None else info.seed


@script
def numbers_and_seeds_of_workers(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Worked(files), 2, num_workers=2, generator=generator())
    # The seeds and the distribution over workers are different after a click: then only indices are compared.
    return [[[one.tolist() for one in batch[1 : 2 if click is not no_click else 4]] for batch in loader] for _ in "12"]


@script
def attributes_that_are_assigned(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True)
    seen = loop(loader, click)
    loader.collate_fn = negative
    seen += loop(loader, no_click)
    loader.generator = generator()
    seen += loop(loader, no_click)
    batches = iter(loader)
    seen.append(next(batches)[1].tolist())
    loader.collate_fn = default_collate
    return [*seen, *(targets.tolist() for _, targets in batches), *loop(loader, no_click)]


@script
def a_collate_function_that_is_assigned_before_a_click(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True)
    seen: list[Any] = []
    for number, (_, targets) in enumerate(loader):
        seen.append(targets.tolist())
        if number == 0:
            loader.collate_fn = negative  # not before the next epoch
            click(loader)
    return [*seen, *loop(loader, no_click)]


@script
def attributes_that_are_assigned_while_workers_are_kept(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 2, shuffle=True, num_workers=1, persistent_workers=True)
    seen = loop(loader, no_click)
    loader.collate_fn = negative
    return [*seen, *(one for _ in range(2) for one in loop(loader, click))]


@script
def copies_of_a_loader(files: list[Path], click: Click) -> list[Any]:
    loader: Any = DataLoader(Located(files), 4, shuffle=True)
    seen = loop(loader, click)
    for one in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):  # noqa: S301 - our own
        seen += loop(one, no_click)
    return [*seen, *loop(loader, no_click)]


class Inner(Located):
    """A data set that reads each sample with a DataLoader of its own."""

    def __getitem__(self, index: int) -> Any:
        ((image, target),) = [
            (image[0], int(targets[0])) for image, targets in DataLoader(Located([self.paths[index]]))
        ]
        return image, index + target


@script
def a_data_set_that_iterates_a_loader(files: list[Path], click: Click) -> list[Any]:
    seen = []
    for workers in (0, 1):
        loader: Any = DataLoader(Inner(files), 4, shuffle=True, num_workers=workers, generator=generator())
        for _ in range(2):
            seen += [targets.tolist() for _, targets in loader]
            click(loader)
    return seen


class Generating(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return (batch for batch in super()._get_iterator())


class Overridden(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch[0], batch[1] + 1


@script
def classes_that_iterate_in_their_own_way(files: list[Path], click: Click) -> list[Any]:
    first: Any = Generating(Located(files), 4, shuffle=True)
    second: Any = Overridden(Located(files), 4, shuffle=True)
    seen = [[loop(loader, no_click) for _ in range(2)] for loader in (first, second)]
    click(second)
    return [*seen, *loop(second, no_click)]


def run_script(script: Script, files: list[Path], click: Click) -> tuple[list[Any], dict[str, Any]]:
    seed_all()
    seen = script(files, click)
    return seen, Defaults.now().plain()


@violent
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_loop_gets_what_plain_torch_gives(name: str, files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    expected = run_script(SCRIPTS[name], files, no_click)
    with attaching(polled=True):
        assert run_script(SCRIPTS[name], files, no_click) == expected
    with attaching():
        seen, generators = run_script(SCRIPTS[name], files, click)
    if name == "numbers_and_seeds_of_workers":
        expected = [[one[:1] for one in epoch] for epoch in expected[0]], expected[1]
    assert seen == expected[0]
    if name != "a_data_set_that_iterates_a_loader":  # its inner DataLoaders draw here if it has no workers
        assert generators == expected[1]
    assert "a fault in kernel_monitor" not in caplog.text
