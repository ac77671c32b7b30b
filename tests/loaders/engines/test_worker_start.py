"""Workers of attached DataLoaders that were not switched, while DALI runs: the same as if forked from this process."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from kernel_monitor.loaders.engines import fork_server, worker_start
from kernel_monitor.steps import attached

from ..attached_loops import attaching
from ..conftest import dali_begins, seed_all, wait_for
from ..data.datasets import RUNNABLE, Case, as_written, equal, write_images

pytestmark = pytest.mark.usefixtures("without_dali")


def parents(batches: Any) -> set[int]:
    """Return the process ids of the parents of an iterator's workers."""
    return {psutil.Process(worker.pid).ppid() for worker in batches._workers}


def server() -> set[int]:
    found = fork_server.server()
    assert found is not None
    return {found.pid}


def delivered(loader: Any, *, of_server: bool = False) -> tuple[list[Any], torch.Tensor]:
    """Return the batches of an epoch, and the state of the default generator after it.

    `of_server`: assert that its workers come from the fork server.
    """
    seed_all()
    batches = iter(loader)
    if of_server:
        assert parents(batches) == server()
    return list(batches), torch.get_rng_state()


STEP = 1 if os.environ.get("CORPUS") == "long" else 8
READ = [
    case
    for number, case in enumerate(RUNNABLE)
    if (number % STEP == 0 or not case.picklable) and case.name != "zip, open from the start"
]
"""All that pickle cannot send, and one of eight of the others, which are all sent alike. CORPUS=long reads all."""


@as_written
@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_every_data_set_is_read_as_by_workers_of_this_process(case: Case, tmp_path: Path) -> None:
    loader = DataLoader(case.make(write_images(tmp_path)), 4, num_workers=1, collate_fn=case.collate)
    with attaching():
        expected, state = delivered(loader)
        dali_begins()
        found, state_after = delivered(loader, of_server=True)
    assert case.random or equal(found, expected)
    assert torch.equal(state_after, state)


class Drawing(Dataset[Any]):
    """A data set whose samples are what their worker knows and draws."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        numbers = float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002 - as people's code
        return index, info.id, info.seed, numbers, str(torch.zeros(()).dtype)


class Shards(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        yield from ((info.id, number, random.random()) for number in range(5))


def init(worker: int) -> None:
    torch.manual_seed(100 + worker)


LOADERS = {
    "shuffled": lambda: DataLoader(Drawing(), 2, shuffle=True, num_workers=2),
    "kept workers": lambda: DataLoader(Drawing(), 2, shuffle=True, num_workers=2, persistent_workers=True),
    "own generator": lambda: DataLoader(Drawing(), 2, num_workers=2, generator=torch.Generator().manual_seed(5)),
    "init function": lambda: DataLoader(Drawing(), 2, num_workers=2, worker_init_fn=init),
    "init function in a closure": lambda: DataLoader(
        Drawing(), 2, num_workers=2, worker_init_fn=lambda worker: init(worker + 1)
    ),
    "iterable-style": lambda: DataLoader(Shards(), 2, num_workers=2),
    "single samples": lambda: DataLoader(Drawing(), None, num_workers=1),
    "a context of its own": lambda: DataLoader(Drawing(), 4, num_workers=1, multiprocessing_context="fork"),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_workers_draw_what_those_of_this_process_draw(make: Any) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        expected = [delivered(loader := make()), delivered(loader)]
        with attaching():
            dali_begins()
            loader = make()
            context = loader.multiprocessing_context
            found = [delivered(loader, of_server=True), delivered(loader, of_server=True)]
            assert loader.multiprocessing_context is context
    finally:
        torch.set_default_dtype(torch.float32)
    assert equal([batches for batches, _ in found], [batches for batches, _ in expected])
    assert all(torch.equal(state, other) for (_, state), (_, other) in zip(found, expected, strict=True))


class Locked(Drawing):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return super().__getitem__(index)


class Positioned(Drawing):
    """It tells torchdata how far it has come, which a worker that goes on is told."""

    def __init__(self) -> None:
        self.read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return super().__getitem__(index), self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = 100 + state["read"]


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")  # torchdata calls it
@pytest.mark.parametrize("persistent", [False, True], ids=["", "kept workers"])
def test_workers_of_torchdata_s_loader_draw_and_go_on_as_those_of_this_process(persistent: bool) -> None:
    def run(*, of_server: bool) -> Any:
        def make() -> StatefulDataLoader[Any]:
            return StatefulDataLoader(
                Positioned(), 2, shuffle=True, num_workers=2, persistent_workers=persistent, worker_init_fn=init
            )

        seed_all()
        loader = make()
        seen: list[Any] = [list(loader)]
        batches = iter(loader)
        seen += [next(batches), state := loader.state_dict()]
        other = make()
        other.load_state_dict(state)
        rest = iter(other)
        for iterator in (batches, rest):
            assert parents(iterator) == (server() if of_server else {psutil.Process().pid})
        return [*seen[:-1], list(batches), list(rest)], torch.get_rng_state()

    expected, state = run(of_server=False)
    with attaching():
        dali_begins()
        found, state_after = run(of_server=True)
    assert equal(found, expected)
    assert torch.equal(state_after, state)


def test_what_cannot_be_sent_is_read_by_workers_of_this_process(caplog: pytest.LogCaptureFixture) -> None:
    """A lock that was made after the fork server. An error here would end a loop that runs without this package."""
    expected = delivered(DataLoader(Locked(), 2, num_workers=1))
    with attaching():
        dali_begins()
        seed_all()
        batches = iter(DataLoader(Locked(), 2, num_workers=1))
        assert parents(batches) == {psutil.Process().pid}
        assert equal(list(batches), expected[0])
    assert "cannot be sent" in caplog.text


def test_without_the_fork_server_workers_are_those_of_this_process(caplog: pytest.LogCaptureFixture) -> None:
    expected = delivered(loader := DataLoader(Drawing(), 2, num_workers=1))
    with attaching():
        dali_begins()
        ended = psutil.Process(next(iter(server())))
        ended.kill()
        wait_for(lambda: ended.status() == psutil.STATUS_ZOMBIE)
        assert equal(delivered(loader)[0], expected[0])
    assert "has ended" in caplog.text


def test_a_server_that_ends_while_workers_start_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = delivered(loader := DataLoader(Drawing(), 2, num_workers=2))

    def ended(*_: Any) -> Any:
        raise fork_server.NoWorkers.ended()

    with attaching():
        dali_begins()
        monkeypatch.setattr(fork_server._ForkServer, "fork", ended)
        assert equal(delivered(loader)[0], expected[0])


def test_an_interrupt_while_a_worker_starts_leaves_neither_worker_nor_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    dali_begins()
    found = psutil.Process(server().pop())
    fork_server._tracker()  # has a pipe of its own from its first use on
    before = psutil.Process().num_fds()
    with monkeypatch.context() as patched:
        patched.setattr(fork_server, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fork_server.WorkerProcess(target=print).start()
    assert psutil.Process().num_fds() == before
    wait_for(lambda: found.children() == [])


def test_a_lock_that_is_met_before_the_click_is_inherited() -> None:
    expected = delivered(loader := DataLoader(Locked(), 2, num_workers=1))
    with attaching():
        delivered(loader)
        dali_begins()
        assert equal(delivered(loader, of_server=True)[0], expected[0])


def test_a_loader_that_is_not_attached_to_is_torch_s_alone() -> None:
    with attaching():
        dali_begins()
    batches = iter(DataLoader(Drawing(), 2, num_workers=1))
    assert parents(batches) == {psutil.Process().pid}
    assert attached.worker_start_context is worker_start._plain_worker_start
