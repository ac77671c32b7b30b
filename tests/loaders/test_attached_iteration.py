"""Attached loaders, iterated as frameworks do: in an `__iter__` of their own classes, several at once, made anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate.data_loader import SkipBatchSampler
from torch.utils.data import DataLoader, IterableDataset
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import live
from kernel_monitor.loaders.takeover import Takeover
from kernel_monitor.steps import attached

from .conftest import augmented, wait_for

PHOTOS = 243


before: set[str] = set()  # ids of the loaders of earlier tests


class Moved(DataLoader[Any]):
    """Does something with each batch, as loaders of frameworks move it to a device."""

    def __iter__(self) -> Any:
        for images, targets in super().__iter__():
            yield images + 1, targets


@pytest.fixture(autouse=True)
def attaching() -> Iterator[None]:
    before.update(loader.id for loader in live())
    assert attached.attach()
    yield
    attached.detach()


@pytest.fixture
def data(folder: Path) -> ImageFolder:
    data = ImageFolder(folder, augmented())
    data.samples = [(path, number) for number, (path, _) in enumerate(data.samples)]
    return data


def shown() -> dict[str, Takeover]:
    return {loader.name: loader for loader in live() if isinstance(loader, Takeover) and loader.id not in before}


def ready(loader: Takeover) -> Any:
    """Wait until its engine is ready; there is a switchable loader once a batch was asked for."""
    made: Any = loader.loader
    wait_for(lambda: made.switch_state.preparing is None)
    return made


def test_what_a_class_does_in_its_own_iter_is_done_with_the_engines_batches(data: ImageFolder) -> None:
    train_loader = Moved(data, 9, shuffle=True)
    seen: list[int] = []
    for epoch in range(2):
        for number, (images, targets) in enumerate(train_loader):
            seen += targets.tolist()
            assert images.min() > -1.8  # of normalized images above -2.2, and one more
            if (epoch, number) == (0, 3):
                shown()["train_loader"].switch("dali-cpu")
            elif epoch == 0 and number > 3:
                ready(shown()["train_loader"])
    assert sorted(seen[:PHOTOS]) == sorted(seen[PHOTOS:]) == list(range(PHOTOS))
    loader = shown()["train_loader"]
    assert loader.backend == "dali-cpu"
    assert [(epoch["samples"], epoch["finished"]) for epoch in loader.epochs()] == [(PHOTOS, True)] * 2
    assert loader.epochs()[1]["decoded"] == {"dali-cpu": PHOTOS}


def test_an_epoch_that_is_left_after_its_last_batch_has_ended(data: ImageFolder) -> None:
    """Frameworks count the batches, and ask for no more."""
    loader = DataLoader(data, 27)
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
            for one in shown().values():
                if one.loader is None:
                    one.switch("dali-cpu")
                else:
                    ready(one)
    (found,) = shown().values()
    assert found.backend == "dali-cpu"
    assert [(epoch["epoch"], epoch["samples"], epoch["finished"]) for epoch in found.epochs()] == [
        (number, PHOTOS, True) for number in range(3)
    ]


def test_several_loaders_of_one_line_are_several(data: ImageFolder) -> None:
    first, second = DataLoader(data, 27, shuffle=True), DataLoader(data, 27, shuffle=True)
    for _ in range(2):
        for _pair in zip(first, second, strict=True):
            pass
    assert {name: loader.meter.totals().images for name, loader in shown().items()} == {
        "ImageFolder": 2 * PHOTOS,
        "ImageFolder_2": 2 * PHOTOS,
    }
    shown()["ImageFolder_2"].switch("dali-cpu")
    targets = [(a[1], b[1]) for a, b in zip(first, second, strict=True)]
    assert sorted(int(number) for _, batch in targets for number in batch) == list(range(PHOTOS))
    assert [loader.epochs()[-1]["epoch"] for loader in shown().values()] == [2, 2]
    assert shown()["ImageFolder"].backend == "torchvision"


def test_a_loader_made_anew_goes_on_with_numbers_choice_and_counts(data: ImageFolder) -> None:
    def epoch() -> Iterator[Any]:
        yield from DataLoader(data, 27)

    one: Any = None
    for number in range(4):
        for batch, _ in enumerate(epoch()):
            (one,) = shown().values()
            if (number, batch) == (0, 1):
                one.switch("dali-cpu")
            elif one.loader is not None:
                ready(one)
        (one,) = shown().values()
        assert one.loader is None  # its DataLoader is gone
        counts = one.epochs()[-1]
        assert (counts["epoch"], counts["samples"], counts["finished"]) == (number, PHOTOS, True)
        assert "dali-cpu" in counts["decoded"]
        assert one.backends["dali-cpu"].available
        state = one.state()
        assert (state["epoch"], state["samples"], state["planned"]) == (number, PHOTOS, PHOTOS)
    one.switch("torchvision")  # between two of them
    for _ in epoch():
        pass
    assert one.epochs()[-1]["decoded"] == {"torchvision": PHOTOS}


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_a_stream_made_anew_with_its_loader_is_one_loader_until_the_loop_is_gone() -> None:
    """Two at once are two; none of another class, or of another loop, is it."""
    made = """
def epoch():
    for batch in DataLoader(Numbers(), 2):
        yield batch
"""
    names: dict[str, Any] = {"DataLoader": DataLoader, "Numbers": Numbers}
    one: Any = None
    exec(made, names)  # noqa: S102 - code that can be let go of, as that of a cell
    for number in range(3):
        for _ in names["epoch"]():
            (one,) = shown().values()
        assert (one.name, one.epochs()[-1]["epoch"], one.epochs()[-1]["samples"]) == ("Numbers", number, 6)
    assert len(list(zip(names["epoch"](), names["epoch"](), strict=True))) == 3
    assert list(shown()) == ["Numbers", "Numbers_2"]
    for _ in DataLoader(Numbers(), 2):
        assert len(shown()) == 3
    names["epoch"] = None
    gc.collect()
    assert [loader.name for loader in shown().values() if loader is one] == []


def test_the_rest_of_an_epoch_is_the_same_loader(data: ImageFolder) -> None:
    """As accelerate's `skip_first_batches` makes it; later the whole loader has its place again."""
    whole = DataLoader(data, 27)
    rest = DataLoader(data, batch_sampler=SkipBatchSampler(whole.batch_sampler, 2))
    for loader in (whole, rest, whole):
        for _ in loader:
            pass
    (one,) = shown().values()
    assert [epoch["batches"] for epoch in one.epochs()] == [9, 7, 9]
    del rest
    one.switch("dali-cpu")
    assert one.loader is not None
