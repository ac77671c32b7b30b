"""A data set as its workers hold it: what is copied, and whether what is shared has changed."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from kernel_monitor.loaders.data.fingerprint import COMPARED, Held, contents, same_contents


@dataclass
class Record:
    epoch: int = 0
    inner: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(names=["a"]))
    _cache: dict[str, int] = field(default_factory=dict)


class Slotted:
    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = 0


class Data(Dataset[int]):
    def __init__(self) -> None:
        self.epoch = 0
        self.record = Record()
        self.records = [Record(), Record()]
        self.options = Namespace(size=3)
        self.slotted = Slotted()
        self.weights = torch.ones(3)
        self.shared = torch.ones(3).share_memory_()
        self.numbers = np.arange(9)
        self.files = [str(number) for number in range(100)]
        self.log = logging.getLogger("tests.held")

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        raise AssertionError("user code")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("user code")


class Closed(Data):
    """It cannot be copied."""

    def __del__(self) -> None:
        pass


def _set(path: str, value: Any) -> Callable[[Data], None]:
    def change(data: Data) -> None:
        *names, last = path.split(".")
        found: Any = data
        for name in names:
            found = vars(found)[name]
        setattr(found, last, value)

    return change


def _in_array(data: Data) -> None:
    data.numbers[4] = 77


def _in_tensor(data: Data) -> None:
    data.weights[1] = 5.0


def _in_shared_tensor(data: Data) -> None:
    data.shared[1] = 5.0


def _in_list(data: Data) -> None:
    data.records[1].inner.names.append("b")


def _logs(data: Data) -> None:
    data.log.debug("fills the logger's cache")
    data.record._cache["a"] = 1


def _in_files(data: Data) -> None:
    data.files[7] = "other"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (_set("epoch", 5), False), (_set("record", Record(7)), False), (_in_files, False), (_logs, False),
        (_in_shared_tensor, False), (_set("record.epoch", 0), False), (_set("options.size", 3), False),
        (_set("record.epoch", 1), True), (_set("record.inner.names", ["b"]), True), (_set("options.size", 4), True),
        (_set("slotted.epoch", 1), True), (_in_array, True), (_in_tensor, True), (_in_list, True),
    ],
)  # fmt: skip
def test_a_copy_stays_as_it_was_and_other_changes_are_noticed(change: Callable[[Data], None], seen: bool) -> None:
    """`seen`: the change is in an object that is shared with the user's data set."""
    data = Data()
    held = Held(data)
    assert not held.changed()
    change(data)
    copy = vars(held.dataset)
    assert (copy["epoch"], len(copy["files"]), copy["files"][7], copy["record"].epoch in (0, 1)) == (0, 100, "7", True)
    assert held.changed() is seen


def test_of_what_cannot_be_copied_every_change_is_noticed() -> None:
    data = Closed()
    held = Held(data)
    assert held.dataset is data
    assert not held.changed()
    data.epoch = 4
    assert held.changed()


def test_contents_are_those_of_the_moment() -> None:
    data = Data()
    indices = list(range(9))
    whole = Subset(data, indices)
    before = contents([whole], whole)
    assert same_contents(before, contents([whole], whole))
    for change in (_in_files, _in_list, _set("record.inner.names", []), lambda _: indices.reverse()):
        before = contents([whole], whole)
        change(data)
        assert not same_contents(before, contents([whole], whole))
    data.files = ["a"] * (COMPARED + 1)
    before = contents([whole], whole)
    data.files.append("b")
    assert not same_contents(before, contents([whole], whole))


def test_a_tensor_that_starting_workers_moved_to_shared_memory_has_not_changed() -> None:
    dataset = Data()
    dataset.mean = torch.zeros(3)  # type: ignore[attr-defined]
    held = Held(dataset)
    dataset.mean.share_memory_()
    assert not held.changed()
