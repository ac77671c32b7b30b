"""Which objects of a DataLoader are the same, and of which class: as in plain torch, before and after a click."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from kernel_monitor.loaders import switchable
from kernel_monitor.steps import attached

from ..combinations import combinations
from .attached_loops import attaching, engines_of, wait_until_ready
from .conftest import make_folder, settle
from .photos import Located

SAMPLES, BATCH = 12, 2
BATCHES = SAMPLES // BATCH


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("identities"), SAMPLES).glob("*/*.jpg"))


def collate(samples: list[Any]) -> Any:
    return default_collate(samples)


class Own(DataLoader[Any]):
    """A class of the user's, whose `__iter__` gives torch's iterator."""

    def __iter__(self) -> Any:
        return super().__iter__()


def of_iterator(loader: Any, iterator: Any) -> dict[str, Any]:
    """What may be asked of an iterator while it is at its beginning."""
    return {
        "class": type(iterator),
        "is torch's": isinstance(iterator, _BaseDataLoaderIter),
        "is its own": iter(iterator) is iterator,
        "is kept": loader._iterator is iterator,
        "kept": loader._iterator is None,
        "data set": iterator._dataset is loader.dataset,
        "collate function": iterator._collate_fn is loader.collate_fn,
        "sampler": iterator._index_sampler is loader.batch_sampler,
        "workers": (iterator._num_workers, iterator._persistent_workers, hasattr(iterator, "_workers")),
        "prefetch": getattr(iterator, "_prefetch_factor", None),
        "settings": (iterator._timeout, iterator._pin_memory, iterator._drop_last, iterator._auto_collation),
        "seed": type(iterator._base_seed),
        "length": len(iterator),
        "yielded": iterator._num_yielded,
    }


def of_loader(loader: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What may be asked of a DataLoader between two epochs."""
    return {
        "class": type(loader),
        "length": len(loader),
        "given": [name for name, value in given.items() if getattr(loader, name) is not value],
        "sampler": loader.batch_sampler.sampler is loader.sampler,
        "attributes": [name for name in vars(loader) if not name.startswith("_kernel_monitor")],
        "pids": tuple(worker.pid for worker in getattr(loader._iterator, "_workers", ())),
    }


def after_end(iterator: Any) -> list[str]:
    """Ask three times more than there are batches, and what is not there."""
    ends = []
    for _ in range(3):
        try:
            next(iterator)
        except StopIteration:
            ends.append("end")
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)
    return ends


def asked(loader: Any, given: dict[str, Any], click: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
    """Ask for everything in each of five epochs; the click may come before, within or after the second one."""
    pids = set()
    last: Any = None
    iterator: Any = None
    for epoch in range(5):
        click("before" if epoch == 1 else "between" if epoch == 2 else "")
        iterator = iter(loader)
        yield "same as the last one", iterator is last
        yield "iterator", of_iterator(loader, iterator)
        seen = []
        for number, (_, targets) in enumerate(iterator):
            click("within" if (epoch, number) == (1, 1) else "")
            seen.append((targets.tolist(), iterator._num_yielded))
        yield "batches", seen
        yield "after the end", after_end(iterator)
        found = of_loader(loader, given)
        pids.add(found.pop("pids"))
        yield "loader", found
        last = iterator
    yield "workers", len(pids)
    del iterator
    yield "the same", iter(loader) is iter(loader)
    yield "pairs", [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=False)]
    yield "by identity", list(by_identity(loader))
    left = iter(loader)
    next(left)
    yield "after a break", (next(iter(loader))[1].tolist(), next(left)[1].tolist())


def by_identity(loader: Any) -> Iterator[int]:
    """The batches of three epochs, for code that tells epochs by their iterator."""
    last: Any = None
    for _ in range(3):
        iterator = iter(loader)
        yield 0 if iterator is last else sum(1 for _ in iterator)
        last = iterator


WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize(
    ("options", "kind", "clicked", "engine"),
    combinations(WORKERS, [DataLoader, Own], ["never", "before", "within", "between"], ["threads", "dali-cpu"]),
)
@pytest.mark.usefixtures("without_dali")
def test_what_is_the_same_in_plain_torch_is_the_same(
    files: list[Path], options: dict[str, Any], kind: type[DataLoader[Any]], clicked: str, engine: str
) -> None:
    data = Located(files)
    given: dict[str, Any] = {"dataset": data, "collate_fn": collate, "batch_size": BATCH}
    plain = list(asked(kind(**given, **options), given, lambda _: None))
    with attaching():
        loader: Any = kind(**given, **options)

        def click(moment: str) -> None:
            if moment == clicked:
                engines_of(loader).switch(engine)
            if attached.attached(loader) is not None:
                wait_until_ready(loader)

        for (what, found), (_, expected) in zip(asked(loader, given, click), plain, strict=True):
            assert found == expected, what
        assert engines_of(loader).backend == ("torchvision" if clicked == "never" else engine)


@pytest.mark.parametrize("options", WORKERS)
@pytest.mark.usefixtures("without_dali")
def test_what_a_wrapped_loader_keeps(files: list[Path], options: dict[str, Any]) -> None:
    """Its iterators are of a class of its own, and new for each epoch; the rest is the DataLoader's."""
    data = Located(files)
    given: dict[str, Any] = {"dataset": data, "collate_fn": collate, "batch_size": BATCH}
    plain: Any = DataLoader(**given, **options)
    loader: Any = switchable(plain)
    for epoch in range(3):
        if epoch == 1:
            loader.switch("threads")
        iterator = iter(loader)
        assert (iter(iterator) is iterator, len(iterator), len(loader)) == (True, BATCHES, BATCHES)
        assert [targets.tolist() for _, targets in iterator] == [[k, k + 1] for k in range(0, SAMPLES, BATCH)]
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)
        assert [name for name, value in given.items() if getattr(loader, name) is not value] == []
        assert loader.sampler is plain.sampler
        assert iter(loader) is not iter(loader)
        settle(loader)
    assert loader.backend == "threads"
    loader.release()


@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("broken_off", [True, False])
def test_a_kept_iterator_is_torch_s_again_without_the_monitor(files: list[Path], broken_off: bool) -> None:
    """The monitor ends while an engine has an epoch, of which the loop wants no more; or after it."""
    expected = list(range(SAMPLES))
    with attaching():
        loader: Any = DataLoader(Located(files), BATCH, num_workers=2, persistent_workers=True)
        for epoch in range(3):
            if epoch == 1:
                engines_of(loader).switch("threads")
            for number, _ in enumerate(loader):
                wait_until_ready(loader)
                if (epoch, number) == (2, 2) and broken_off:
                    break
        kept = loader._iterator
        assert engines_of(loader).backend == "threads"
    with nullcontext() if broken_off else attaching():
        for _ in range(2):
            assert [target for _, targets in loader for target in targets.tolist()] == expected
            assert loader._iterator is kept
