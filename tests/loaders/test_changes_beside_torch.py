"""A data set that is changed while it is iterated: every batch is that of plain torch, attached and wrapped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

from kernel_monitor.loaders import switchable

from ..combinations import combinations
from .attached_loops import attaching, engines_of, wait_until_ready
from .conftest import make_folder, settle

SAMPLES, BATCH, EPOCHS = 36, 3, 4


def fixed(size: int) -> v1.Compose:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])


class Config:
    """An object inside a data set that is neither a data set nor a transform."""

    epoch = 0

    def __init__(self) -> None:
        self.inner = SimpleNamespace(epoch=0)


class Changing(Dataset[Any]):
    """Its samples say which file they are, and what the data set's attributes are."""

    def __init__(self, files: list[Path]) -> None:
        self.files = list(files)
        self.transform = fixed(16)
        self.epoch = 0
        self.config = Config()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        return {
            "image": self.transform(image),
            "index": index,
            "file": int(self.files[index].stem),
            "epoch": self.epoch,
            "config": (self.config.epoch, self.config.inner.epoch),
        }


def _transform(data: Changing, number: int) -> None:
    data.transform = fixed(16 + 8 * number)


def _transform_attribute(data: Changing, number: int) -> None:
    data.transform.transforms[0].size = (16 + 8 * number,) * 2


def _list(data: Changing, number: int) -> None:
    data.files = [*data.files[number:], *data.files[:number]]


def _list_in_place(data: Changing, number: int) -> None:
    data.files.append(data.files.pop(number))


def _attribute(data: Changing, number: int) -> None:
    data.epoch = number


CHANGES: list[Callable[[Changing, int], None]] = [
    _attribute, _transform, _transform_attribute, _list, _list_in_place
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("changing"), SAMPLES).glob("*/*.jpg"))


Between = Callable[[int, int], None]
"""Called with the epoch and the number of the batch that was delivered; -1: before the epoch's first one."""


def batches(loader: Any, data: Changing, change: Any, when: str, between: Between) -> list[list[dict[str, Any]]]:
    """Return all batches of `EPOCHS` epochs, with a change before each, or in the middle of each but the first."""
    epochs = []
    for epoch in range(EPOCHS):
        if when == "between" and epoch:
            change(data, epoch)
        between(epoch, -1)
        seen = []
        for number, batch in enumerate(loader):
            seen.append(batch)
            if (when, number) == ("within", 2) and epoch:
                change(data, epoch)
            between(epoch, number)
        epochs.append(seen)
    return epochs


def plain(files: list[Path], options: dict[str, Any], change: Any, when: str) -> list[list[dict[str, Any]]]:
    data = Changing(files)
    return batches(DataLoader(data, BATCH, **options), data, change, when, lambda *_: None)


def facts(batch: dict[str, Any]) -> Any:
    """What a batch is but for its pixels."""
    numbers = [batch[name].tolist() for name in ("index", "file", "epoch")]
    return [*numbers, [one.tolist() for one in batch["config"]], tuple(batch["image"].shape)]


def assert_same(got: list[list[dict[str, Any]]], expected: list[list[dict[str, Any]]]) -> None:
    assert [[facts(batch) for batch in epoch] for epoch in got] == [
        [facts(batch) for batch in epoch] for epoch in expected
    ]
    for epochs in zip(got, expected, strict=True):
        for one, other in zip(*epochs, strict=True):
            assert (one["image"] - other["image"]).abs().mean() < 0.01


CLICKS = {"before": (1, -1), "within": (1, 4), "between": (2, -1)}
"""Epoch and batch at which an engine is clicked."""
WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.mark.parametrize(
    ("form", "options", "change", "when", "clicked", "engine"),
    combinations(
        ["attached", "wrapped"], WORKERS, CHANGES, ["between", "within"], list(CLICKS),
        ["torchvision", "threads", "dali-cpu"],
    ),
)  # fmt: skip
@pytest.mark.usefixtures("without_dali")
def test_batches_are_those_of_plain_torch(
    files: list[Path], form: str, options: dict[str, Any], change: Any, when: str, clicked: str, engine: str
) -> None:
    """`torchvision`: after a click on `threads`, and in the middle of the next epoch."""
    expected = plain(files, options, change, when)
    data, served = Changing(files), set[str]()
    gc.collect()
    with attaching() if form == "attached" else nullcontext():
        loader: Any = DataLoader(data, BATCH, **options)
        loader = loader if form == "attached" else switchable(loader)

        def click(name: str) -> None:
            (engines_of(loader) if form == "attached" else loader).switch(name)

        def between(epoch: int, number: int) -> None:
            at = (epoch, number)
            if at == CLICKS[clicked]:
                click("threads" if engine == "torchvision" else engine)
            elif engine == "torchvision" and at == (CLICKS[clicked][0] + 1, 4):
                click("torchvision")
            if at > CLICKS[clicked]:
                if form == "wrapped":
                    settle(loader)
                else:
                    wait_until_ready(loader)
                served.add(engines_of(loader).backend if form == "attached" else loader.backend)

        assert_same(batches(loader, data, change, when, between), expected)
        assert served >= {engine, "threads" if engine == "torchvision" else engine}
        if form == "wrapped":
            loader.release()


def _nested(data: Changing, number: int) -> None:
    data.config.epoch = number


def _nested_deeper(data: Changing, number: int) -> None:
    data.config.inner.epoch = number


@pytest.mark.parametrize(
    ("form", "persistent", "change", "engine"),
    combinations(["attached", "wrapped"], [False, True], [_nested, _nested_deeper], ["threads", "dali-cpu"]),
)
@pytest.mark.usefixtures("without_dali")
def test_what_only_the_workers_hold_is_left_to_them_and_the_status_says_so(
    files: list[Path], form: str, persistent: bool, change: Any, engine: str
) -> None:
    """Objects deeper in a data set are not copied. A click after their change does not take place in that epoch."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    expected = plain(files, options, change, "within")
    data, said, backends = Changing(files), list[str](), set[str]()
    gc.collect()
    with attaching() if form == "attached" else nullcontext():
        loader: Any = DataLoader(data, BATCH, **options)
        loader = loader if form == "attached" else switchable(loader)

        def between(epoch: int, number: int) -> None:
            if epoch == 0:
                return
            engines: Any = engines_of(loader) if form == "attached" else loader
            if number == 3:
                engines.switch(engine)
            if number > 3:
                settle(engines.loader if form == "attached" else loader)
            if number == SAMPLES // BATCH - 1:
                said.append(engines.state()["status"])
                backends.add(engines.backend)

        assert_same(batches(loader, data, change, "within", between), expected)
        assert backends == {"torchvision"}
        remedy = "make the DataLoader anew" if persistent else "switch again in the next epoch"
        assert len(said) == EPOCHS - 1
        for status in said:
            assert status.startswith(f"{engine} failed: the data set was changed after its workers had started")
            assert remedy in status
        if form == "wrapped":
            loader.release()


@pytest.mark.usefixtures("without_dali")
def test_an_engine_gives_way_to_kept_workers_when_only_they_hold_the_data_set(files: list[Path]) -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    expected = plain(files, options, _nested, "between")
    data = Changing(files)
    with attaching():
        loader: Any = DataLoader(data, BATCH, **options)
        backends = []

        def between(epoch: int, number: int) -> None:
            if (epoch, number) == (0, 2):
                engines_of(loader).switch("threads")
            if number > 2:
                wait_until_ready(loader)
            if number == SAMPLES // BATCH - 1:
                backends.append(engines_of(loader).backend)

        assert_same(batches(loader, data, _nested, "between", between), expected)
        assert backends == ["threads", "torchvision", "torchvision", "torchvision"]
        assert "make the DataLoader anew" in engines_of(loader).state()["status"]


@pytest.mark.parametrize(
    ("form", "change", "engine"),
    combinations(["attached", "wrapped"], [_list_in_place, _nested_deeper], ["threads", "dali-cpu"]),
)
def test_without_workers_what_is_computed_ahead_is_computed_anew(
    files: list[Path], form: str, change: Any, engine: str
) -> None:
    expected = plain(files, {}, change, "within")
    data = Changing(files)
    gc.collect()
    with attaching() if form == "attached" else nullcontext():
        loader: Any = DataLoader(data, BATCH)
        loader = loader if form == "attached" else switchable(loader)

        def between(epoch: int, number: int) -> None:
            engines: Any = engines_of(loader) if number >= 0 and form == "attached" else loader
            if (epoch, number) == (0, 1):
                engines.switch(engine)
            if number == 2:
                settle(engines.loader if form == "attached" else loader)

        assert_same(batches(loader, data, change, "within", between), expected)
        assert (engines_of(loader) if form == "attached" else loader).backend == engine
