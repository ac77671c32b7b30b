"""Data sets that open something at their first sample which may be open once in a process, as an LMDB environment."""

from __future__ import annotations

import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import lmdb
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset, get_worker_info

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.data.file_source import FileSource
from kernel_monitor.loaders.data.fingerprint import snapshot
from kernel_monitor.loaders.data.view import View

from ..conftest import augmented, make_folder, switch_to

COUNT = 12
pytestmark = pytest.mark.usefixtures("no_garbage_collection")


@pytest.fixture
def environment(tmp_path: Path) -> str:
    path = str(tmp_path / "lmdb")
    files = sorted(make_folder(tmp_path / "images", COUNT).glob("*/*.jpg"))
    with lmdb.open(path, map_size=1 << 24) as opened, opened.begin(write=True) as transaction:
        for number, file in enumerate(files):
            transaction.put(b"%d" % number, file.read_bytes())
    return path


class Lazy(Dataset[Any]):
    def __init__(self, path: str, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.environment: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.environment is None:
            self.environment = lmdb.open(self.path, readonly=True, lock=False)
        with self.environment.begin() as transaction:
            data = transaction.get(b"%d" % index)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), index


class Named(Dataset[Any]):
    """One that holds the other, so that a view of it holds a view of that."""

    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return (*self.inner[index], "train")


class Chosen(Lazy):
    """One that keeps a method of its own."""

    def __init__(self, path: str, transform: Any) -> None:
        super().__init__(path, transform)
        self.read = self.from_database

    def from_database(self, index: int) -> Any:
        return super().__getitem__(index)

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


@pytest.mark.parametrize("kind", [Lazy, Named, Chosen])
def test_an_examination_leaves_nothing_open(kind: Any, environment: str) -> None:
    dataset = kind(Lazy(environment, augmented())) if kind is Named else kind(environment, augmented())
    loader = switchable(DataLoader(dataset, batch_size=4))
    assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason
    assert [batch[1].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    switch_to(loader, "dali-cpu")
    assert [batch[1].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert loader.backend == "dali-cpu"
    assert not loader.fallbacks()


def test_what_dali_opens_is_not_open_where_workers_are_given_the_data_set(environment: str) -> None:
    """Nor where the next state of the data set is read, which would be refused."""
    users = Lazy(environment, augmented())
    source = FileSource(users)
    users.environment = None
    shown = users
    for _ in range(3):
        users.transform = augmented()
        shown = snapshot(users)
        source.show(shown)
        assert source.obstacle is None
        assert source.read(source.locate(0)).reason is None
        assert shown.environment is None
        pickle.dumps(source)
    source.rejoin()  # as in a worker
    assert source.read(source.locate(0)).reason is None
    assert shown.environment is not None


def set_level(_worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.level = 5


class Levels(Lazy):
    level = 0

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), self.level)


def test_a_worker_reads_what_its_own_function_has_changed(environment: str) -> None:
    loader = switchable(
        DataLoader(Levels(environment, augmented()), batch_size=4, num_workers=1, worker_init_fn=set_level)
    )
    assert loader.backends["dali-cpu"].available
    assert [batch[2].tolist() for batch in loader] == [[5] * 4] * 3


class Handle:
    """Something that is open as long as it is held."""


@pytest.mark.parametrize("kind", [Lazy, Named, Chosen])
def test_a_view_that_is_given_up_holds_nothing(kind: Any) -> None:
    inner: Any = kind("", augmented()) if kind is not Named else Lazy("", augmented())
    inner.environment = handle = Handle()
    watched = weakref.ref(handle)
    view = View(Named(inner) if kind is Named else inner)
    assert view.points
    if kind is Chosen:
        del inner.read  # its own cycle
    del view, inner, handle
    assert watched() is None
