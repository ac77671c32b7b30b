"""A watched iterable yields what it yielded, and is in everything else what it was."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms.functional import pil_to_tensor

import kernel_monitor
from kernel_monitor import switchable, watch_loader
from kernel_monitor.errors import MonitorError
from kernel_monitor.steps.watched_loader import count_samples, live
from tests.unit.watched import source


def images(samples: int = 10, **options: Any) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(samples * 3.0).reshape(samples, 3), torch.arange(samples))
    return DataLoader(data, batch_size=4, **options)


class Pictures(Dataset[Any]):
    """One grey picture."""

    transform = pil_to_tensor

    def image_file(self, index: int) -> tuple[bytes, int]:
        file = io.BytesIO()
        Image.new("RGB", (8, 8)).save(file, "JPEG")
        return file.getvalue(), index

    def __getitem__(self, index: int) -> tuple[Any, int]:
        content, target = self.image_file(index)
        return pil_to_tensor(Image.open(io.BytesIO(content))), target

    def __len__(self) -> int:
        return 1


def test_it_yields_the_very_objects_and_its_epochs_are_counted() -> None:
    batches = [object() for _ in range(5)]
    watched = watch_loader(batches, name="objects")
    for _ in range(2):
        assert [one is other for one, other in zip(watched, batches, strict=True)] == [True] * 5
    assert len(watched) == 5
    assert bool(watch_loader([])) is False
    found = source("objects").epochs()
    assert [(one["epoch"], one["batches"], one["samples"]) for one in found] == [(0, 5, 5), (1, 5, 5)]
    steps = source("objects").meter.steps_since(0)[0]
    assert [(one.epoch, one.batch) for one in steps] == [(epoch, number) for epoch in (0, 1) for number in range(5)]


def test_a_dataloader_reads_and_writes_through_and_its_plan_is_known() -> None:
    loader = images()
    watched = watch_loader(loader, name="train")
    assert len(watched.dataset) == 10
    assert watched.batch_size == 4
    watched.pin_memory_device = "none"
    assert loader.pin_memory_device == "none"
    assert [len(labels) for _, labels in watched] == [4, 4, 2]
    state: dict[str, object] = dict(source("train").state())
    assert state == {
        "id": state["id"], "name": "train", "backend": "loader", "wanted": None, "status": "watched, batch 3",
        "backends": [], "epoch": 0, "batch": 3, "batches": 3, "samples": 10, "planned": 10, "lost": 0, "doubled": 0,
        "skipped": 0, "replaced": 0, "skips": [], "calibration": {}, "nodes": 0, "ranks": 0, "padded": 0,
        "once": False, "attached": False, "remote": None, "ended": False, "decoded": {}, "finished": True,
        "knobs": {"workers": None, "prefetch": None, "threads": None},
    }  # fmt: skip
    for _ in watched:
        break
    assert source("train").state()["samples"] == 4
    assert [one["samples"] for one in source("train").epochs()] == [10, 4]
    dropping = watch_loader(images(drop_last=True), name="dropping")
    assert [len(labels) for _, labels in dropping] == [4, 4]
    assert source("dropping").state()["planned"] == 8
    assert "train: watched, batch 1" in repr(watched)


def test_a_generator_is_used_up_once_and_closed_when_it_is_left() -> None:
    left: list[bool] = []

    def batches() -> Iterator[int]:
        try:
            yield from range(4)
        finally:
            left.append(True)

    watched = watch_loader(batches(), name="once")
    with pytest.raises(TypeError):
        len(watched)
    assert next(watched) == 0
    assert list(watched) == [1, 2, 3]
    assert left == [True]
    assert list(watched) == []
    found = source("once").epochs()
    assert [one["batches"] for one in found] == [4, 0], "an epoch that delivered nothing shows as such"
    for _ in watch_loader(batches()):
        break
    assert left == [True, True]


def test_an_iterator_that_begins_anew_by_itself_does() -> None:
    class Again:
        """As DALI's own iterators."""

        def __init__(self) -> None:
            self.at = 3

        def __iter__(self) -> Again:
            self.at = 0
            return self

        def __next__(self) -> int:
            if self.at == 3:
                raise StopIteration
            self.at += 1
            return self.at

    watched = watch_loader(Again(), name="again")
    assert [list(watched), list(watched)] == [[1, 2, 3], [1, 2, 3]]
    assert [one["batches"] for one in source("again").epochs()] == [3, 3]
    assert watched.at == 3


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_what_it_raises_reaches_the_loop_and_is_no_step(kind: type[BaseException]) -> None:
    def batches() -> Iterator[int]:
        yield 1
        yield 2
        raise kind("its own")

    watched = watch_loader(batches(), name="raises")
    assert [next(watched), next(watched)] == [1, 2]
    with pytest.raises(kind, match="its own"):
        list(watched)
    assert source("raises").meter.totals().steps == 2


def test_what_is_measured_already_comes_back_as_it_is() -> None:
    watched = watch_loader([1])
    assert watch_loader(watched) is watched
    loader = switchable(DataLoader(Pictures()), seed=1)
    try:
        assert watch_loader(loader) is loader
        assert int(loader.id.removeprefix("loader-")) not in [int(one.id.removeprefix("loader-")) for one in live()]
    finally:
        loader.release()


def test_what_cannot_be_iterated_or_copied_is_named() -> None:
    with pytest.raises(MonitorError, match="int is not"):
        watch_loader(3)
    with pytest.raises(MonitorError, match="cannot be copied"):
        copy.copy(watch_loader([1]))
    with pytest.raises(AttributeError):
        _ = watch_loader([1]).nothing

    class Sequence:
        def __getitem__(self, place: int) -> int:
            return range(3)[place]

    assert list(watch_loader(Sequence())) == [0, 1, 2]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(7, 3), 7),
        (np.zeros((5, 2)), 5),
        ((torch.zeros(4, 3), torch.zeros(4)), 4),
        ({"ids": ["a"], "pixels": [torch.zeros(6, 3)]}, 6),
        ({"boxes": torch.zeros(9, 4), "images": torch.zeros(2, 3, 8, 8)}, 2),
        ([[torch.tensor(3.0), torch.zeros(2, 2)]], 2),
        (((torch.zeros(3, 20, 30), torch.zeros(3, 40, 30)), ({"boxes": torch.zeros(5, 4)}, {})), 2),
        (([torch.zeros(2, 3, 20, 20), torch.zeros(2, 3, 8, 8)], torch.zeros(2)), 2),
        (([torch.zeros(5, 20, 30), torch.zeros(5, 20, 30)], torch.zeros(5)), 5),
        (["a.jpg", "b.jpg", "c.jpg"], 3),
        ("abc", 3),
        (torch.tensor(1.0), 1),
        (SimpleNamespace(x=1), 1),
        (None, 1),
        ([], 0),
    ],
)
def test_samples_are_counted_sensibly(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples


def test_it_is_there_by_name_and_says_nothing_of_phases() -> None:
    assert kernel_monitor.watch_loader is watch_loader
    assert "watch_loader" in dir(kernel_monitor)
    watched = watch_loader(range(3), name="plain")
    assert list(watched) == [0, 1, 2]
    assert all(math.isnan(one.forward) for one in source("plain").meter.steps_since(0)[0])
