"""Breaks, exceptions, interrupts, dead workers, forks, garbage: the next iteration starts clean, nothing stays."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import listen, live, switchable
from kernel_monitor.loaders.engines import torch_engine
from kernel_monitor.loaders.loader import _end
from kernel_monitor.os_process import FORK_SERVER

from ..conftest import Make, augmented, dali_begins, deliver, settle, violent


def children() -> set[int]:
    """Process ids of the workers; multiprocessing's own servers, which other tests leave, are not among them."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            servers = ("resource_tracker", "forkserver", FORK_SERVER)
            if not any(name in " ".join([child.name(), *child.cmdline()]) for name in servers):
                found.add(child.pid)
    return found


def gone(pids: set[int], seconds: float = 15) -> bool:
    """Whether all have ended in time. Looks only: waiting would take their exit status away from multiprocessing."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupt(pids: set[int]) -> None:
    """End workers as a notebook's interrupt does.

    About one in three hundred is caught inside multiprocessing's `Queue.put`, whose lock it then waits for at its end,
    in plain torch as well: that one is killed.
    """
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    if not gone(pids, 5):
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        assert gone(pids)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def labels(loader: Any, epoch: int | None = None) -> list[int]:
    return [loader.dataset.samples[index][1] for index in loader.plan(epoch)]


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_break_exception_and_iterate_again(make: Make, backend: str, workers: int) -> None:
    loader = make(shuffle=True, num_workers=workers)
    loader.switch(backend)
    if not workers:
        settle(loader)
    for number, _ in enumerate(loader):
        if number == 3:
            break

    def fail() -> None:
        for _ in loader:
            raise RuntimeError("the loop's own")

    with pytest.raises(RuntimeError, match="the loop's own"):
        fail()
    before = children()
    assert deliver(loader)[1].tolist() == labels(loader)
    assert sorted(loader.plan()) == list(range(243))
    assert loader.backend == backend
    state = loader.state()
    assert (state["epoch"], state["lost"], state["doubled"], state["samples"]) == (2, 0, 0, 243)
    if backend == "dali-cpu":
        assert children() == before  # nothing forks once DALI runs


@violent
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_while_waiting_loses_nothing(make: Make, backend: str, workers: int) -> None:
    loader = make(shuffle=True, num_workers=workers, transform=v1.Compose([v1.Resize((300, 300)), v1.ToTensor()]))
    loader.switch(backend)
    if not workers:
        settle(loader)
    iterator = iter(loader)
    delivered = [next(iterator)[1]]
    interrupted = 0
    while True:
        timer = threading.Timer(0.004, signal.raise_signal, [signal.SIGINT]) if interrupted < 5 else None
        try:
            if timer is not None:
                timer.start()
            delivered.append(next(iterator)[1])
        except KeyboardInterrupt:
            interrupted += 1
            continue
        except StopIteration:
            break
        finally:
            while timer is not None:
                try:
                    timer.join()
                    break
                except KeyboardInterrupt:  # also one that comes as late as now
                    interrupted += 1
    assert interrupted >= 5
    assert torch.cat(delivered).tolist() == labels(loader)
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, 243)


@violent
def test_workers_ended_by_a_notebooks_interrupt_are_replaced(make: Make) -> None:
    loader = make(shuffle=True)
    deliver(loader)
    old = children()
    iterator = iter(loader)
    next(iterator)
    del iterator
    current = children()
    interrupt(current)
    assert gone(old)
    assert deliver(loader)[1].tolist() == labels(loader)


@violent
def test_workers_that_still_count_as_alive_while_they_end_are_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(shuffle=True)
    iterator = iter(loader)
    next(iterator)
    del iterator
    dali_begins()  # workers are kept from one iteration to the next, as nothing has changed
    current = children()
    interrupt(current)
    monkeypatch.setattr(torch_engine.WorkersEngine, "_alive", lambda _: True)
    assert deliver(loader)[1].tolist() == labels(loader)
    assert not current & children()
    assert loader.state()["lost"] == 0


@violent
def test_a_killed_worker_raises_as_torch_does_and_the_next_iteration_is_whole(make: Make) -> None:
    loader = make(shuffle=True, batch_size=4)
    iterator = iter(loader)
    next(iterator)
    killed = children()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for _ in iterator:
            pass
    with contextlib.suppress(RuntimeError):  # torch reports the second one wherever the main thread is when it ends
        assert gone(killed)
    assert deliver(loader)[1].tolist() == labels(loader)
    assert loader.state()["lost"] == 0


@violent
def test_a_worker_that_is_killed_while_they_are_ended_raises_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(shuffle=True, batch_size=4)
    next(iter(loader))
    engine = loader.pool["torchvision"].engine
    assert isinstance(engine, torch_engine.WorkersEngine)
    workers, shutdown = engine.pids, engine._iterator._shutdown_workers

    def killed() -> None:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        shutdown()

    monkeypatch.setattr(engine._iterator, "_shutdown_workers", killed)
    loader.release()
    assert gone(set(workers))
    assert deliver(loader)[1].tolist() == labels(loader)


@pytest.mark.usefixtures("without_dali")
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_release_and_garbage_collection_leave_nothing(folder: Path, backend: str) -> None:
    def build() -> Any:
        return switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=8, num_workers=2))

    first = build()
    first.switch(backend)
    deliver(first)
    first.release()
    gc.collect()
    baseline_threads, baseline = threads(), children()

    loader = build()
    name = loader.id
    loader.switch(backend)
    iterator = iter(loader)
    next(iterator)
    workers = children() - baseline
    assert len(workers) == 2
    assert threads() > baseline_threads or backend == "torchvision"
    assert name in [one.id for one in live()]
    del loader, iterator
    gc.collect()
    assert gone(workers)
    assert name not in [one.id for one in live()]
    deadline = time.monotonic() + 15
    while threads() > baseline_threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threads() <= baseline_threads


@pytest.mark.usefixtures("without_dali")  # else DALI may be ready before any worker is wanted
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_an_iteration_that_was_left_goes_without_a_collector(folder: Path, backend: str) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=8, num_workers=2))
    loader.switch(backend)
    name, others = loader.id, children()
    gc.collect()
    gc.disable()
    try:
        for _ in loader:
            break
        workers = children() - others
        assert workers
        del loader
        assert name not in [one.id for one in live()]
        assert gone(workers)
    finally:
        gc.enable()


@pytest.mark.usefixtures("without_dali")
def test_release_in_the_middle_loses_nothing(make: Make) -> None:
    loader = make(shuffle=True)
    loader.switch("dali-cpu")
    others = children()
    delivered = []
    for number, (_, targets) in enumerate(loader):
        delivered += targets.tolist()
        if number == 5:
            workers = children() - others
            assert len(workers) == 2
            loader.release()
            assert gone(workers)
        if number == 10:
            loader.switch("torchvision")
            settle(loader)
    assert delivered == labels(loader)
    assert loader.state()["lost"] == loader.state()["doubled"] == 0
    assert loader.backend == "torchvision"


def test_a_pipeline_that_is_garbage_is_not_collected_in_a_forked_child(make: Make) -> None:
    loader = make(shuffle=True)
    loader.switch("dali-cpu")
    deliver(loader)
    gc.collect()
    gc.disable()
    try:
        garbage: list[Any] = [loader.pool["dali-cpu"].engine._pipeline]  # type: ignore[attr-defined]
        assert garbage[0] is not None
        garbage.append(garbage)
        del garbage
        loader.release()
        child = os.fork()
        if child == 0:
            gc.collect()  # waits for threads that there are not, unless the pipeline is kept
            os._exit(0)
    finally:
        gc.enable()
    try:
        assert gone({child})
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_forked_children_are_inert(make: Make) -> None:
    loader = make()
    heard: list[str] = []
    unlisten = listen(lambda event: heard.append(event["kind"]))
    loader.switch("dali-cpu")
    next(iter(loader))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        report = [len(live())]
        try:
            iter(loader)
        except MonitorError:
            report.append(1)
        loader.release()
        del loader
        gc.collect()
        os.write(writer, repr(report).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"[0, 1]"
    os.close(reader)
    os.close(writer)
    unlisten()
    assert len(deliver(loader)[1]) == 243


def fixed(size: int) -> v1.Compose:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])


@pytest.mark.usefixtures("without_dali")
def test_workers_are_kept_between_epochs_once_dali_runs(folder: Path) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, fixed(8)), batch_size=50, num_workers=2))
    deliver(loader)
    first = loader.worker_pids
    deliver(loader)
    second = loader.worker_pids
    assert not set(first) & set(second)  # as torch
    dali_begins()
    loader.dataset.transform = fixed(8)  # equal to what it was
    deliver(loader)
    assert loader.worker_pids == second
    loader.release()


def test_dali_sees_a_changed_transform_at_the_next_epoch(folder: Path) -> None:
    dataset = ImageFolder(folder, fixed(8))
    loader = switchable(DataLoader(dataset, batch_size=50))
    loader.switch("dali-cpu")
    settle(loader)
    assert deliver(loader)[0].shape[-1] == 8
    dataset.transform = fixed(14)
    assert deliver(loader)[0].shape[-1] == 14
    assert loader.backend == "dali-cpu"
    dataset.transform.transforms.insert(0, v2.MixUp(num_classes=3))  # for batches: nothing to do with one image
    iter(loader)
    assert loader.switch_state.active == "torchvision"
    assert "MixUp (transform 1 of 3)" in loader.state()["status"]
    assert not loader.backends["dali-cpu"].available
    loader.release()


@violent
@pytest.mark.parametrize("seed", range(4))
def test_a_worker_killed_at_any_moment_never_hangs_the_loop(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    before = children()
    loader = make(shuffle=True, batch_size=2)
    iterator = iter(loader)
    next(iterator)
    victim = chance.choice(sorted(children() - before))
    killer = threading.Timer(chance.random() * 0.1, os.kill, [victim, signal.SIGKILL])
    killer.start()
    started = time.monotonic()

    def go_on() -> None:
        for _ in iterator:
            time.sleep(0.002)

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        go_on()
    assert time.monotonic() - started < 60  # torch looks every 5 s whether its workers live
    killer.join(10)
    assert deliver(loader)[1].tolist() == labels(loader)
    assert loader.state()["lost"] == 0


def test_a_loader_that_is_collected_inside_its_own_engine_is_released_when_that_is_left(make: Make) -> None:
    """Python's collector runs on whichever thread allocates: it may be one that is preparing an engine."""
    loader = make(num_workers=0)
    pooled = loader.pool["torchvision"]
    released = threading.Event()
    pooled.engine.release = released.set  # type: ignore[method-assign]
    with pooled.use():
        _end(loader.pool, loader.switch_state, os.getpid())
        assert not released.wait(0.1)
    assert released.wait(10)
