"""Attached loaders that iterate in ways of their own: they are measured, and say why they cannot be switched."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader as of_torch
from torchdata.stateful_dataloader import StatefulDataLoader

from kernel_monitor.errors import BackendUnavailable
from kernel_monitor.loaders.takeover import takeover
from kernel_monitor.steps import attached

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")  # torchdata calls it

DATA = TensorDataset(torch.arange(10))
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
REPLACED: list[tuple[Any, str]] = [
    (DataLoader, "__iter__"),
    (of_torch._BaseDataLoaderIter, "__next__"),
    (of_torch._SingleProcessDataLoaderIter, "__init__"),
    (of_torch._MultiProcessingDataLoaderIter, "__init__"),
    (sys.modules[STATEFUL]._StatefulMultiProcessingDataLoaderIter, "__init__"),
    (StatefulDataLoader, "__iter__"),
]


@pytest.fixture
def attaching() -> Iterator[None]:
    attached.attach()
    yield
    attached.detach()


class Repeated:
    """A sampler that never ends, as in many copies of YOLO's loader."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Endless(DataLoader[Any]):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator: Any = None

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.iterator is None:
            self.iterator = self.made()
        for _ in range(len(self)):
            yield next(self.iterator)

    def made(self) -> Any:
        return super().__iter__()


class EndlessToo(Endless):
    def made(self) -> Any:
        return self._get_iterator()


@pytest.mark.usefixtures("attaching")
@pytest.mark.parametrize("kind", [Endless, EndlessToo])
def test_epochs_of_an_iterator_that_never_ends(kind: type[Endless]) -> None:
    loader = kind(DATA, batch_size=4)
    for _ in range(3):
        assert [len(numbers) for (numbers,) in loader] == [4, 4, 2]
    entry = attached.attached(loader)
    assert entry is not None
    assert [(one["samples"], one["lost"], one["finished"]) for one in entry.epochs()] == [(10, 0, True)] * 3
    assert entry.meter.totals().images == 30
    with pytest.raises(
        BackendUnavailable, match=f"torchvision cannot be used: {kind.__name__} iterates in a way of its"
    ):
        takeover(entry).switch("torchvision")
    assert [len(numbers) for (numbers,) in loader] == [4, 4, 2]


@pytest.mark.usefixtures("attaching", "no_garbage_collection")
def test_an_iterator_holds_no_loader_that_holds_it() -> None:
    for kind in (Endless, EndlessToo, StatefulDataLoader):
        loader: Any = kind(DATA, batch_size=4)
        next(iter(loader))
        gone = weakref.ref(loader)
        del loader
        assert gone() is None


def test_a_loader_of_torchdata_that_is_imported_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [getattr(owner, name) for owner, name in REPLACED]
    module = sys.modules[STATEFUL]
    monkeypatch.delitem(sys.modules, STATEFUL)
    try:
        attached.attach()
        assert StatefulDataLoader.__iter__ is before[-1]
        monkeypatch.setitem(sys.modules, STATEFUL, module)
        attached.attach()  # as the monitor asks again and again
        loader = StatefulDataLoader(DATA, batch_size=4)
        assert len(list(loader)) == 3
        entry = attached.attached(loader)
        assert entry is not None
        assert entry.epochs()[0]["samples"] == 10
    finally:
        attached.detach()
    assert [getattr(owner, name) for owner, name in REPLACED] == before


@pytest.mark.usefixtures("attaching")
@pytest.mark.parametrize("kind", [DataLoader, Endless, EndlessToo])
def test_warnings_of_torch_come_from_torch(kind: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(kind(DATA, batch_size=4, pin_memory=True))
    assert {warning.filename for warning in caught if "pin_memory" in str(warning.message)} <= {of_torch.__file__}
