"""Data sets that cannot be pickled, in workers that are not forked: the same samples as in workers that are."""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import time
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from random import randint
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

from kernel_monitor import switchable
from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders.engines import worker_start
from kernel_monitor.loaders.engines.worker_pickle import WorkerPayload

from ..conftest import dali_begins, on_both, set_cores
from ..data.datasets import RUNNABLE, Case, as_written, equal, write_images
from ..data.datasets.folder import photos
from .test_scripts import run

SEED = 7
HELD = random.Random(2)

UNPICKLABLE = [case for case in RUNNABLE if not case.picklable]


def unforked(loader: Any, workers: int = 2) -> list[Any]:
    """The first epoch again, by workers that are not forked."""
    dali_begins()
    before = loader.worker_pids
    loader.set(workers=workers)
    until = time.monotonic() + 120
    while (len(loader.worker_pids) != workers or loader.worker_pids == before) and time.monotonic() < until:
        list(loader)
    assert len(loader.worker_pids) == workers
    assert all(psutil.Process(pid).ppid() != psutil.Process().pid for pid in loader.worker_pids)
    loader.set_epoch(0)
    return list(loader)


@as_written
@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("case", UNPICKLABLE, ids=lambda case: case.name)
def test_what_cannot_be_pickled_is_sent_by_value(case: Case, tmp_path: Path) -> None:
    plain = DataLoader(case.make(write_images(tmp_path)), 4, num_workers=1, collate_fn=case.collate)
    loader = switchable(plain, seed=SEED)
    forked = list(loader)
    if case.name == "zip, open from the start":  # workers would share its place in the file
        dali_begins()
    else:
        assert equal(unforked(loader), forked)
    assert worker_start.transfer_of(loader._keyed, loader._wrapped) == (None, True)


def local(**attributes: Any) -> tuple[Any, type, type]:
    """A data set whose classes are in no module; what it returns, and what it raises."""
    own = np.random.default_rng(4)
    transform = v1.Lambda(lambda value: value + own.random())

    @dataclass
    class Sample:
        index: int
        value: Any

    class Unlucky(RuntimeError):
        pass

    class Local(Dataset[Any]):
        def __init__(self) -> None:
            self.held = torch.Generator()
            self.__dict__.update(attributes)

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            if getattr(self, "fails", None) == index:
                raise Unlucky(f"sample {index}")
            if getattr(self, "odd", None) == index:
                return Sample(index, threading.Lock())
            drawn = (
                randint(0, 10**9),
                [HELD.random() for _ in range(2)],
                float(torch.rand((), generator=self.held)),
                np.random.rand(),  # noqa: NPY002
            )
            return Sample(index, (transform(index), drawn))

    return Local(), Sample, Unlucky


def values(batches: list[Any]) -> list[Any]:
    return [(sample.index, sample.value) for batch in batches for sample in batch]


def loader_of(dataset: Any) -> Any:
    return switchable(DataLoader(dataset, 4, collate_fn=lambda samples: samples), seed=SEED)


def test_draws_and_classes_are_the_same() -> None:
    dataset, kind, _ = local()
    loader = loader_of(dataset)
    expected = list(loader)
    found = unforked(loader)
    assert values(found) == values(expected)
    assert {type(sample) for batch in found for sample in batch} == {kind}


def test_an_exception_comes_back_as_itself() -> None:
    dataset, _, error = local()
    loader = loader_of(dataset)
    unforked(loader)
    dataset.fails = 5
    with pytest.raises(error, match="Caught Unlucky in DataLoader worker"):
        list(loader)


def test_a_sample_that_cannot_be_sent_back_is_an_error_and_no_endless_wait() -> None:
    dataset, _, _ = local()
    loader = loader_of(dataset)
    unforked(loader)
    dataset.odd = 5
    with pytest.raises(TypeError, match=r"(?s)while a worker's batch was sent back.*cannot pickle '_thread.lock'"):
        list(loader)


def test_the_rest_of_a_chain_in_workers_beside_dali(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 8)
    paths = photos(write_images(tmp_path))

    class Local(Dataset[Any]):
        def __init__(self) -> None:
            self.transform = v1.Compose([v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor()])

        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> Any:
            with Image.open(paths[index]) as image:
                return self.transform(image.convert("RGB")), randint(0, 10**9)

    loader = switchable(DataLoader(Local(), 4, num_workers=1), seed=SEED)
    expected, found = on_both(loader, list)
    assert loader.decoded() == {"dali-cpu": 24}
    assert [numbers.tolist() for _, numbers in found] == [numbers.tolist() for _, numbers in expected]
    for (one, _), (other, _) in zip(found, expected, strict=True):
        assert float((one - other).abs().mean()) * 255 < 6


def test_a_tensor_is_shared_and_not_copied() -> None:
    dataset, _, _ = local(features=torch.zeros(50_000_000))
    loader = loader_of(dataset)
    assert worker_start.transfer_of(loader._keyed, loader._wrapped).by_value
    assert not dataset.features.is_shared()  # asking moves nothing
    _, (_, data) = WorkerPayload(loader._keyed).__reduce__()
    assert dataset.features.is_shared()
    assert len(data) < 100_000


def test_a_mapped_file_is_mapped_again(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "features", np.float32, "w+", shape=(12, 3))
    mapped[:] = np.arange(36).reshape(12, 3)
    dataset, _, _ = local(features=mapped)
    loader = loader_of(dataset)
    assert worker_start.transfer_of(loader._keyed, loader._wrapped).by_value
    _, (_, data) = WorkerPayload(loader._keyed.source.dataset).__reduce__()
    (received,), _ = pickle.loads(data)  # noqa: S301 - our own
    assert type(received.features) is np.memmap
    assert np.array_equal(received.features, mapped)
    mapped[5] = 1
    assert np.array_equal(received.features, mapped)


def test_arrays_of_which_each_worker_would_get_a_copy_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, _, _ = local(features=np.zeros(1_000_000))
    loader = loader_of(dataset)
    assert worker_start.transfer_of(loader._keyed, loader._wrapped).by_value
    monkeypatch.setattr(worker_start, "MOST_COPIED", 7_999_999)
    dali_begins()
    with pytest.raises(MonitorError, match=r"each would get a copy of 0\.0 GB of NumPy arrays; a torch.Tensor or"):
        loader.set(workers=2)


@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("filtered", ["ignore", "error"])
def test_workers_have_the_surroundings_of_the_process(
    filtered: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Warns(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            try:
                warnings.warn("one of the user's", UserWarning, stacklevel=1)
            except UserWarning:
                return os.environ.get("OF_A_CELL"), Path.cwd().name, True
            return os.environ.get("OF_A_CELL"), Path.cwd().name, False

    loader = loader_of(Warns())
    dali_begins()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_A_CELL", "yes")  # all of these changed since the fork server was made
    with warnings.catch_warnings():
        warnings.simplefilter(filtered)
        found = unforked(loader)
    assert {sample for batch in found for sample in batch} == {("yes", tmp_path.name, filtered == "error")}


def test_without_cloudpickle_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, _, _ = local()
    loader = loader_of(dataset)
    dali_begins()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MonitorError, match=r"as cloudpickle is missing.*pip install cloudpickle"):
        loader.set(workers=2)


def test_what_cannot_be_sent_is_refused_with_a_sentence() -> None:
    dataset, _, _ = local()
    loader = loader_of(dataset)
    dali_begins()
    dataset.lock = threading.Lock()  # the fork server has not inherited it
    with pytest.raises(MonitorError, match=r"^No new workers.*cannot be sent to them: cannot pickle '_thread.lock'"):
        loader.set(workers=2)


SCRIPT = """
import random
held = random.Random(1)
calls = []

def helper(value):
    calls.append(value)
    return value + held.random() + len(calls) * 0

class Numbers:
    def __init__(self, change):
        self.change = change
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index, held.random(), self.change(index), len(calls)

def changes(amount):
    return lambda value: helper(value) + amount
"""
LAMBDA = """
import kernel_monitor.loaders.engines.worker_start as worker_start
loader = switchable(DataLoader(Numbers(changes(2)), 4, collate_fn=lambda samples: samples), seed=3)
forked = [sample[:3] for batch in loader for sample in batch]
worker_start.before_dali()
worker_start.note_dali()
loader.set(workers=1)
wait(lambda: list(loader) and loader.worker_pids)
loader.set_epoch(0)
sent = [sample for batch in loader for sample in batch]
print([sample[:3] for sample in sent] == forked, min(sample[3] for sample in sent) > 0)
"""


def test_a_lambda_of_a_script_meets_the_scripts_own_globals(tmp_path: Path) -> None:
    printed, ran = run(tmp_path, LAMBDA, guarded=False, head=SCRIPT)
    assert printed == ["True True"]
    assert ran == ["__main__"]


@pytest.mark.usefixtures("no_garbage_collection")
def test_what_was_sent_is_held_no_longer_than_what_it_was_sent_with() -> None:
    class Ours:
        """Not importable, so it is sent by value."""

    data = Ours()
    held = weakref.ref(data)
    sent = WorkerPayload(data)
    sent.__reduce__()
    assert sent.objects == [Ours]
    del data, sent
    assert held() is None
