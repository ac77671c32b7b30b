"""A sampler may give whatever the data set's `__getitem__` takes: each key arrives as the very object it was."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor import switchable
from kernel_monitor.errors import MonitorError, SampleError
from kernel_monitor.loaders.data.file_check import FileTable

from ..conftest import on_both, switch_to
from ..photos import FIXED
from .datasets import equal

SIZE = 12


class Scale(NamedTuple):
    number: int
    size: int


class Word:
    """A key of one's own, known by its id."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return f"Word({self.word})"


class Silent:
    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __reduce__(self) -> Any:
        return Silent, ()

    def __repr__(self) -> str:
        return "Silent"


KEYS: dict[str, list[list[Any]]] = {
    "indices": [[3, 1], [2, 3]],
    "tuples": [[(3, 32), (1, 32)], [(3, 64), (3, 64)], [(3, 32)]],
    "named tuples": [[Scale(1, 8), Scale(2, 8)], [Scale(1, 16)]],
    "names": [["b", "a"], ["c", "b"]],
    "numpy": [[np.int64(3), np.int32(1)], [np.uint8(2), np.int64(3)]],
    "tensors": [[torch.tensor(3), torch.tensor([1])], [torch.tensor([1, 2]), torch.tensor(0.5)]],
    "bools": [[True, False], [True, np.True_]],
    "outside": [[-1, SIZE, 10**30], [SIZE, -SIZE - 5, -1]],
    "lists": [[[1, 2], [3]], [[1, 2], {"a": 1}]],
    "slices": [[slice(0, 2), slice(2, 4)]],
    "floats": [[0.5, float("nan")], [None, ...]],
    "mixed": [[1, "a", (2, 3)], [np.int64(1), "a", 2]],
    "objects": [[Word("a"), Word("b")]],
    "silent": [[Silent(), Silent()], [Silent()]],
    "none": [[], [1]],
}


def told(key: Any) -> tuple[str, str]:
    return type(key).__name__, repr(key)


class Telling(Dataset[Any]):
    """Tells what it was asked for, and draws."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, key: Any) -> Any:
        return *told(key), random.random()


class Whole(Telling):
    def __getitems__(self, keys: Any) -> Any:
        return [(type(keys).__name__, *self[key]) for key in keys]


def listed(samples: list[Any]) -> list[Any]:
    return samples


def without_draws(batches: Any) -> list[Any]:
    return [[sample[:-1] for sample in batch] for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Telling, Whole])
def test_every_key_arrives_as_it_is(kind: Any, workers: int) -> None:
    batches: list[Any] = [batch for batches in KEYS.values() for batch in batches]
    given: dict[str, Any] = {"batch_sampler": batches, "num_workers": workers, "collate_fn": listed}
    loader = switchable(DataLoader(kind(), **given))
    plain = without_draws(DataLoader(kind(), **given))
    for _ in range(2):
        assert without_draws(loader) == plain
    counts = loader.epochs()[-1]
    assert (counts["samples"], counts["lost"], counts["doubled"]) == (sum(map(len, batches)), 0, 0)
    assert [told(key) for key in loader.plan() if type(key) in (str, tuple, Scale)] == [
        told(key) for batch in batches for key in batch if type(key) in (str, tuple, Scale)
    ]


@pytest.mark.parametrize("name", KEYS)
def test_no_kind_of_key_is_refused_unseeded_or_seeded(name: str) -> None:
    for seeded in (True, False):
        loader = switchable(DataLoader(Telling(), batch_sampler=KEYS[name], collate_fn=listed), seeded=seeded)
        random.seed(1)
        ours = list(loader)
        random.seed(1)
        plain = list(DataLoader(Telling(), batch_sampler=KEYS[name], collate_fn=listed))
        assert without_draws(ours) == without_draws(plain)
        assert seeded or ours == plain
        if name not in ("numpy", "bools", "tensors", "mixed"):  # shown as the indices that they are
            assert [told(key) for key in loader.plan()] == [told(key) for batch in KEYS[name] for key in batch]


class Containers:
    """A batch sampler whose batches are no lists; it fills the same array again and again."""

    def __init__(self, kind: Callable[[np.ndarray[Any, Any]], Any]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        shared = np.zeros(2, dtype=np.int64)
        for first in range(0, 8, 2):
            shared[:] = first, first + 1
            yield self.kind(shared)

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("dataset", [Telling, Whole])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, tuple, iter], ids=["array", "tensor", "tuple", "any"])
def test_batches_that_are_no_lists(kind: Any, dataset: Any) -> None:
    if kind is iter and dataset is Whole:
        return  # torch hands the iterator on, and each can be read once
    sampler: Any = Containers(kind)
    loader = switchable(DataLoader(dataset(), batch_sampler=sampler, collate_fn=listed))
    assert without_draws(loader) == without_draws(DataLoader(dataset(), batch_sampler=sampler, collate_fn=listed))
    assert loader.plan() == list(range(8))


def test_a_key_that_comes_again_draws_anew() -> None:
    batches: list[list[Any]] = [[("a", 1)], [("a", 1)], ["b"], [-1], [-1]]
    loader = switchable(DataLoader(Telling(), batch_sampler=batches, collate_fn=listed), seed=3)
    drawn = [batch[0][-1] for batch in loader]
    assert len(set(drawn)) == 5
    loader.set_epoch(0)
    assert [batch[0][-1] for batch in loader] == drawn


@pytest.mark.parametrize("entries", [["a", "c"], [(1, 2), (3, 4)], np.array([3, 5]), torch.tensor([3, 5]), [-1, 20]])
def test_a_subset_hands_on_its_entries(entries: Any) -> None:
    given: dict[str, Any] = {"batch_size": 2, "collate_fn": listed}
    for kind in (Telling, Whole):
        loader = switchable(DataLoader(Subset(kind(), entries), **given))
        assert without_draws(loader) == without_draws(DataLoader(Subset(kind(), entries), **given))


def test_parts_that_give_batches_are_asked_for_samples() -> None:
    """A ConcatDataset has no `__getitems__`, so torch asks for one sample after the other."""
    dataset: Any = ConcatDataset([Whole(), Telling(), Subset(Whole(), [1, 2])])
    loader = switchable(DataLoader(dataset, batch_size=5, collate_fn=listed))
    assert without_draws(loader) == without_draws(DataLoader(dataset, batch_size=5, collate_fn=listed))


class Scaled:
    """Draws sizes, as multi-scale trainings do."""

    def __init__(self, batches: int = 6) -> None:
        self.generator = torch.Generator().manual_seed(2)
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(SIZE, generator=self.generator).tolist()
        for number in range(self.batches):
            size = int(torch.randint(1, 4, (), generator=self.generator)) * 16
            yield [(index, size) for index in order[2 * number : 2 * number + 2]]


def scaled(workers: int = 0) -> Any:
    sampler: Any = Scaled()
    return DataLoader(Telling(), batch_sampler=sampler, num_workers=workers, collate_fn=listed)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_from_its_middle(workers: int) -> None:
    loader = switchable(scaled(workers), seed=1)
    list(loader)
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(iterator)
    again = switchable(scaled(workers), seed=1)
    again.load_state_dict(state)
    assert list(again) == rest
    assert again.plan() == loader.plan()
    assert [told(key) for key in loader.plan(1)[:4]] == [sample[:2] for batch in seen for sample in batch]
    for one in (loader, again):
        one.release()


def test_another_order_of_keys_is_no_resumption() -> None:
    def loader(keys: list[list[Any]]) -> Any:
        return switchable(DataLoader(Telling(), batch_sampler=keys, collate_fn=listed))

    one = loader([["a", "b"], ["c"]])
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    for other in ([["a", "c"], ["b"]], [["b", "a"], ["c"]]):
        changed = loader(other)
        changed.load_state_dict(state)
        with pytest.raises(MonitorError, match="does not draw again"):
            iter(changed)
    same_again = loader([["a", "b"], ["c"]])
    same_again.load_state_dict(state)
    assert len(list(same_again)) == 1


def test_batches_can_be_left_out_and_iterators_take_turns() -> None:
    loader = switchable(scaled(), seed=1)
    whole = list(loader)
    other = switchable(scaled(), seed=1)
    assert list(other.skip(2)) == whole[2:]
    third = switchable(DataLoader(Telling(), batch_sampler=KEYS["names"] * 2, collate_fn=listed), seed=1)
    alone = list(third)
    third.set_epoch(0)
    first, second = iter(third), iter(third)
    pairs = [(next(first), next(second)) for _ in alone]
    assert [one for one, _ in pairs] == alone
    assert without_draws(other for _, other in pairs) == without_draws(alone)
    assert third.state()["lost"] == 0


class Named(Dataset[Any]):
    """Photos by name, as a table with an index of names has them."""

    def __init__(self, folder: Path) -> None:
        self.paths = {path.stem: path for path in sorted(folder.rglob("*.jpg"))[:SIZE]}
        self.transform = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, name: str) -> Any:
        return self.transform(Image.open(self.paths[name]).convert("RGB")), name


class InTurn:
    """Draws names: nobody knows them before."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names) // 4

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.names), 4):
            yield self.names[first : first + 4]


def near(ours: Any, theirs: Any) -> bool:
    return all(float((a - b).abs().mean()) < 0.01 and na == nb for (a, na), (b, nb) in zip(ours, theirs, strict=True))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_dali_serves_keys_that_it_can_follow(folder: Path, workers: int) -> None:
    data = Named(folder)
    names = list(data.paths)
    batches = [names[first : first + 4] for first in range(0, SIZE, 4)] * 4
    loader = switchable(DataLoader(data, batch_sampler=batches, num_workers=workers), seed=4)
    expected = list(loader)
    assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason
    loader.set_epoch(0)
    iterator = iter(loader)
    first = next(iterator)
    switch_to(loader, "dali-cpu")
    found = [first, *iterator]
    assert loader.decoded()["dali-cpu"] > 0
    assert near(found, expected)
    assert loader.plan() == names * 4
    assert loader.state()["lost"] == loader.state()["doubled"] == 0


def test_where_keys_are_only_known_once_they_are_drawn_dali_is_grey(folder: Path) -> None:
    data = Named(folder)
    sampler: Any = InTurn(list(data.paths))
    loader = switchable(DataLoader(data, batch_sampler=sampler), seed=4)
    assert "Named raises KeyError where it is asked for 0." in str(loader.backends["dali-cpu"].reason)
    assert [name for _, names in loader for name in names] == list(data.paths)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_subset_of_names_is_learnt_by_names(folder: Path) -> None:
    data = Named(folder)
    names: Any = list(data.paths)
    loader = switchable(DataLoader(ConcatDataset([Subset(data, names[:5]), Subset(data, names[5:])]), 4), seed=4)
    assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason
    assert near(*on_both(loader, list))
    assert loader.decoded() == {"dali-cpu": SIZE}


def test_integers_of_numpy_reach_dali(folder: Path) -> None:
    batches: Any = [[np.int64(3), np.int64(200)], [np.int64(3)]]
    loader = switchable(DataLoader(ImageFolder(folder, FIXED), batch_sampler=batches), seed=4)
    plain = [targets.tolist() for _, targets in DataLoader(ImageFolder(folder, FIXED), batch_sampler=batches)]
    switch_to(loader, "dali-cpu")
    assert [targets.tolist() for _, targets in loader] == plain
    assert loader.decoded() == {"dali-cpu": 3}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_a_bad_file_is_named_by_its_key(folder: Path, tmp_path: Path, backend: str) -> None:
    data = Named(folder)
    names = list(data.paths)
    data.paths[names[1]] = bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    for on_error in ("raise", "skip"):
        loader = switchable(DataLoader(data, batch_sampler=[names[:4], names[4:]]), on_error=on_error)
        switch_to(loader, backend)
        if on_error == "raise":
            with pytest.raises(SampleError, match=f"sample '{names[1]}', .*bad.jpg") as caught:
                list(loader)
            assert caught.value.index == names[1]
        else:
            list(loader)
            assert [skip.index for skip in loader.skipped()] == [names[1]]
            (shown,) = loader.state()["skips"]
            assert (shown["index"], shown["path"]) == (-1, f"'{names[1]}': bad.jpg")
            assert all(isinstance(fallback.index, str) for fallback in loader.fallbacks())
        loader.release()


def test_a_table_of_files_is_not_made_for_any_number(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))[:3]]
    table = FileTable(10)
    numbers = [10**15, -1, 10**12]
    first = [table.check(number, path) for number, path in zip(numbers, paths, strict=True)]
    assert all(fact.reason is None for fact in first)
    assert table.check_all(list(zip(numbers, paths, strict=True))) == first
    assert len(table._seen) <= 10


def test_other_ranks_are_not_told_numbers_that_stand_for_keys() -> None:
    loader = switchable(DataLoader(Telling(), batch_sampler=[[1], ["a"]], collate_fn=listed))
    list(loader)
    (record,) = loader.records()
    assert record.shared is False
    assert record.sampled() == [1, "a"]
    assert equal(list(record.indices), [1, SIZE])
