"""Times of samples: batches, draws and objects are those of plain torch, and planted slow samples are named."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, get_worker_info
from torchvision.transforms import Compose

from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps import attached, slow_samples
from kernel_monitor.steps.attached_loader import AttachedLoader
from kernel_monitor.store import Store

from .attached_loops import attaching
from .conftest import seed_all

pytestmark = pytest.mark.usefixtures("without_dali")
SECONDS = 0.0008  # of a sample: enough to be timed
LATE = (13, 37)


class Steady:
    """A transform that draws a number."""

    def __call__(self, value: float) -> float:
        return value + random.random() + float(torch.rand(()))


class RandomSmear:
    """A transform that takes long for the slow samples."""

    def __call__(self, value: float) -> float:
        if int(value) in LATE:
            time.sleep(0.06)
        return value


class Files(Dataset[Any]):
    """A data set that keeps a list of paths and tells what it finds of its worker."""

    def __init__(self, samples: int = 96) -> None:
        self.files = [Path(f"/srv/Client A/photo_{number:04}.tif") for number in range(samples)]
        self.transform = Compose([RandomSmear(), Steady()])
        self.begun = 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[int, float, float, bool, int]:
        time.sleep(SECONDS)
        worker: Any = get_worker_info()
        inner = None if worker is None else worker.dataset
        while isinstance(inner, Subset):
            inner = inner.dataset
        drawn = float(np.random.rand())  # noqa: NPY002 - what people's code draws from
        return index, self.transform(index) - index, drawn, worker is None or inner is self, self.begun


def begin(worker: int) -> None:
    found: Any = get_worker_info()
    data: Any = found.dataset
    while isinstance(data, Subset):
        data = data.dataset
    data.begun = worker + 1 + int(1e6 * random.random())


def epochs(dataset: Any, workers: int, method: str | None, *, persistent: bool) -> tuple[DataLoader[Any], list[Any]]:
    """Return a loader and what two epochs of it delivered, with what the process drew afterwards."""
    seed_all(3)
    loader = DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method,
        worker_init_fn=begin,
        persistent_workers=persistent,
    )
    given = vars(loader).copy()
    seen = [[part.tolist() for part in batch] for _ in range(2) for batch in loader]
    assert vars(loader)["worker_init_fn"] is begin
    assert given["dataset"] is vars(loader)["dataset"]
    return loader, [*seen, random.random(), float(torch.rand(())), float(np.random.rand())]  # noqa: NPY002


@pytest.mark.parametrize(
    ("workers", "method", "persistent"), [(0, None, False), (2, "fork", False), (1, "fork", True), (1, "spawn", True)]
)
def test_batches_and_draws_are_those_of_plain_torch(workers: int, method: str | None, persistent: bool) -> None:
    dataset = Subset(Files(), range(0, 96, 2)) if persistent else Files(48)
    # How a worker is started changes nothing of what it computes, and a spawned one imports torch for seconds.
    _, plain = epochs(dataset, workers, "fork" if workers else None, persistent=persistent)
    with attaching():
        loader, timed = epochs(dataset, workers, method, persistent=persistent)
        entry = attached.attached(loader)
        assert isinstance(entry, AttachedLoader)
        entry.samples.read()
        # All but the first batch of each process: of the epoch, or of a worker that lives on.
        first = 1 if persistent else 2 * max(1, workers)
        found = entry.samples._samples["index"].tolist()
        assert len(found) == 2 * 48 - 8 * first
        assert set(found) <= set(range(48))
        assert max(map(found.count, found)) <= 2
        assert (entry.samples._samples["seconds"] >= SECONDS).all()
    assert timed == plain


def test_what_is_not_timed_is_left_alone() -> None:
    """Data sets of whole batches, iterable ones, samples that are no work, and a data set that raises."""

    class Whole(Files):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    class Broken(Files):
        def __getitem__(self, index: int) -> Any:
            raise ValueError(f"no sample {index}")

    with attaching():
        loader = DataLoader(Whole(8), batch_size=4)
        assert len(list(loader)) == 2
        entry = attached.attached(loader)
        assert entry is not None
        entry.samples.read()
        assert not len(entry.samples._samples)

        fast: DataLoader[Any] = DataLoader(range(400), batch_size=8)  # type: ignore[arg-type]
        iterator: Any = iter(fast)
        assert [batch.tolist() for batch in iterator] == [[*range(at, at + 8)] for at in range(0, 400, 8)]
        assert iterator._dataset_fetcher.dataset is fast.dataset  # after the first ones
        entry = attached.attached(fast)
        assert entry is not None
        entry.samples.read()
        assert len(entry.samples._samples) == 64

        for workers in (0, 1):
            with pytest.raises(ValueError, match="no sample 0"):
                list(DataLoader(Broken(), num_workers=workers))


def test_code_that_closes_every_file_loses_the_times_and_no_sample(caplog: pytest.LogCaptureFixture) -> None:
    """As code does that becomes a daemon: among them is the file that tells the wait for a core."""
    plain = [batch.tolist() for batch in DataLoader(range(64), batch_size=8)]  # type: ignore[arg-type]

    class Closing(Files):
        def __getitem__(self, index: int) -> Any:
            for file in Path("/proc/self/fd").iterdir() if index == 20 else ():
                with contextlib.suppress(OSError):
                    if file.readlink().name == "schedstat":
                        os.close(int(file.name))
            return index

    with attaching():
        assert [batch.tolist() for batch in DataLoader(Closing(64), batch_size=8)] == plain
    assert "the samples of a process are no longer timed" in caplog.text


def test_planted_slow_samples_are_named_with_their_transform() -> None:
    """2 of 100 take 60 times as long; the loop waits for them."""
    store, told = Store(), []
    zero = time.monotonic()
    tracker = LoaderTracker(store, lambda at: at - zero, lambda kind, _at, **fields: told.append((kind, fields)))
    with attaching():
        loader = DataLoader(Files(100), batch_size=10, num_workers=1, persistent_workers=True)
        deadline = time.monotonic() + 30
        while not any(fields["cause"] for _, fields in told) and time.monotonic() < deadline:
            for _ in loader:
                pass
            tracker.refresh()
            for name, rows, dropped in tracker.steps(1.0):
                store.steps.add(name, rows, dropped)
            tracker._samples_due = 0.0
            tracker._samples_told.clear()
    kind, found = told[-1]
    assert kind == "sample-times"
    assert sorted(found["names"]) == ["photo_0013.tif", "photo_0037.tif"]
    assert found["cause"] == "RandomSmear"
    assert found["slow"] == pytest.approx(0.02 * found["samples"], rel=0.2)
    assert found["times"] > 20
    assert found["held"] == pytest.approx(0.2 * found["steps"], rel=0.4)
    assert slow_samples.holds_up(found)


def test_the_names_of_samples() -> None:
    files = Files(8)
    both: Any = ConcatDataset([Subset(files, [5, 6]), Files(3)])
    assert slow_samples.name_of(both, 1) == ("photo_0006.tif", True)
    assert slow_samples.name_of(Subset(both, [4]), 0) == ("photo_0002.tif", True)
    assert slow_samples.name_of(range(9), 4) == ("4", False)
