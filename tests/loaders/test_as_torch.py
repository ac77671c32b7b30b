"""What a DataLoader does and a switchable one does alike: assignment, threads, how far ahead a sampler is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from kernel_monitor.loaders import SwitchableLoader, switchable

from ..combinations import combinations
from .conftest import make_folder, switch_to
from .photos import Located


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("as_torch"), 60).glob("*/*.jpg"))


pytestmark = pytest.mark.usefixtures("without_dali")


# -- assignment -------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "batch_size": 3,
    "batch_sampler": None,
    "sampler": None,
    "drop_last": True,
    "dataset": [],
    "persistent_workers": True,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_does_not_let_be_assigned_is_not(files: list[Path], name: str) -> None:
    plain = DataLoader(Located(files), batch_size=10)
    loader = switchable(DataLoader(Located(files), batch_size=10))
    told = []
    for one in (plain, loader):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set") as refusal:
            setattr(one, name, REFUSED[name])
        told.append(str(refusal.value))
    assert told[0] == told[1]


def first_of(samples: list[Any]) -> tuple[str, list[int]]:
    return "first", [target for _, target in samples]


def second_of(samples: list[Any]) -> tuple[str, list[int]]:
    return "second", [target for _, target in samples]


@pytest.mark.parametrize("engine", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_collate_function_that_is_assigned_is_used_as_torch_uses_it(
    files: list[Path], engine: str, workers: int, persistent: bool
) -> None:
    def deliver(loader: Any) -> list[Any]:
        seen = []
        for function in (None, second_of, first_of):
            if function is not None:
                loader.collate_fn = function
                assert loader.collate_fn is function
            batches = []
            for number, batch in enumerate(loader):
                batches.append(batch)
                if number == 1:
                    loader.collate_fn = second_of  # in the middle of an epoch: not before the next
            seen.append(batches)
        return seen

    options: dict[str, Any] = {
        "batch_size": 10, "num_workers": workers, "persistent_workers": persistent, "collate_fn": first_of
    }  # fmt: skip
    plain = deliver(DataLoader(Located(files), **options))
    loader = switchable(DataLoader(Located(files), **options))
    switch_to(loader, engine)
    assert deliver(loader) == plain
    assert loader.backend == engine


def test_workers_that_are_assigned_come_with_the_next_iteration(files: list[Path]) -> None:
    loader = switchable(DataLoader(Located(files), batch_size=10))
    assert len(list(loader)) == 6
    assert loader.worker_pids == []
    loader.num_workers = 2
    batches = iter(loader)
    assert [target.tolist() for _, target in [next(batches)]] == [list(range(10))]
    assert len(loader.worker_pids) == 2
    assert loader.knobs.workers == 2
    loader.note_of_mine = "kept"
    assert loader.note_of_mine == "kept"


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_threads_with_an_iterator_each_get_every_sample_once(files: list[Path], engine: str, workers: int) -> None:
    loader = switchable(DataLoader(Located(files), batch_size=4, shuffle=True, num_workers=workers))
    switch_to(loader, engine)
    for _ in range(2):
        seen: dict[int, list[int]] = {}

        def iterate(number: int, seen: dict[int, list[int]] = seen) -> None:
            seen[number] = [index for _, targets in loader for index in targets.tolist()]

        # No pool: a process that is forked on a thread of one ends with an error.
        threads = [threading.Thread(target=iterate, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [sorted(seen[number]) for number in range(2)] == [list(range(60))] * 2
        assert seen[0] != seen[1]
    assert all(counts["lost"] == counts["doubled"] == 0 for counts in loader.epochs())


def test_an_iterator_may_be_used_by_another_thread_than_made_it(files: list[Path]) -> None:
    loader = switchable(DataLoader(Located(files), batch_size=4))
    batches = iter(loader)
    seen = [next(batches)[1].tolist()]
    thread = threading.Thread(target=lambda: seen.extend(targets.tolist() for _, targets in batches))
    thread.start()
    thread.join(60)
    assert [index for targets in seen for index in targets] == list(range(60))


# -- how far ahead a sampler is asked ---------------------------------------------------------------------------------


class Told(Sampler[int]):
    """Its next index depends on what the training told it last."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loss = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(24):
            yield (number * 7 + self.loss) % self.length

    def __len__(self) -> int:
        return 24


class Batches(Sampler[list[int]]):
    """Batches from the default generator, one draw for each: what the loop draws in between changes them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.loss = 0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(8):
            yield [(index + self.loss) % self.length for index in torch.randint(self.length, (3,)).tolist()]


def train(loader: Any, sampler: Any, switches: list[str]) -> list[Any]:
    torch.manual_seed(2)
    seen = []
    for _ in range(2):
        for number, (_, targets) in enumerate(loader):
            seen.append(targets.tolist())
            sampler.loss = int(targets.sum()) + int(torch.randint(50, ()))
            if switches and isinstance(loader, SwitchableLoader):
                switch_to(loader, switches[number % len(switches)])
    return seen


SWITCHES = {"stay": [], "switch": ["dali-cpu"], "toggle": ["dali-cpu", "torchvision"]}
AHEAD = [(0, None), (1, 1), (1, 2), (2, 1), (2, 3)]  # workers, and for how many batches each is asked ahead


@pytest.mark.parametrize(("kind", "ahead", "switched"), combinations([Told, Batches], AHEAD, list(SWITCHES)))
def test_a_sampler_that_takes_feedback_is_asked_as_far_ahead_as_by_torch(
    files: list[Path], kind: Any, ahead: tuple[int, int | None], switched: str
) -> None:
    (workers, prefetch), switches = ahead, SWITCHES[switched]

    def made() -> tuple[DataLoader[Any], Any]:
        dataset, sampler = Located(files), kind(len(files))
        how = {"batch_sampler": sampler} if kind is Batches else {"sampler": sampler, "batch_size": 3}
        return DataLoader(dataset, num_workers=workers, prefetch_factor=prefetch, **how), sampler

    expected = train(*made(), [])
    plain, sampler = made()
    loader = switchable(plain)
    assert train(loader, sampler, switches) == expected
    if switches:
        assert loader.decoded()["dali-cpu"]


def test_knobs_do_not_change_how_far_ahead_a_sampler_is_asked(files: list[Path]) -> None:
    def made() -> tuple[DataLoader[Any], Any]:
        dataset, sampler = Located(files), Told(len(files))
        return DataLoader(dataset, sampler=sampler, batch_size=3, num_workers=1), sampler

    expected = train(*made(), [])
    plain, sampler = made()
    loader = switchable(plain)
    loader.set(workers=2, prefetch=3)
    assert train(loader, sampler, []) == expected
