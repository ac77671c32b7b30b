"""Breaks, exceptions, interrupts, dead workers, forks, garbage: the next iteration starts clean, nothing stays."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.loaders import listen, live, switchable
from kernel_monitor.loaders.engines import torch_engine
from kernel_monitor.loaders.switching.engine_pool import PooledEngine

from ..conftest import (
    Make,
    augmented,
    check_counts,
    child_processes,
    dali_begins,
    deliver,
    planned,
    switch_to,
    violent,
    wait_for,
)


def gone(pids: set[int], seconds: float = 15) -> None:
    """Wait until all have ended, without taking their exit status away from multiprocessing."""
    wait_for(lambda: not any(map(alive, pids)), seconds)


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
    try:
        gone(pids, 5)
    except AssertionError:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        gone(pids)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_break_exception_and_iterate_again(make: Make, backend: str, workers: int) -> None:
    loader = make(shuffle=True, num_workers=workers)
    switch_to(loader, backend)
    for number, _ in enumerate(loader):
        if number == 3:
            break

    def fail() -> None:
        for _ in loader:
            raise RuntimeError("the loop's own")

    with pytest.raises(RuntimeError, match="the loop's own"):
        fail()
    before = child_processes()
    assert deliver(loader)[1].tolist() == planned(loader)
    assert sorted(loader.plan()) == list(range(243))
    assert loader.backend == backend
    state = loader.state()
    assert (state["epoch"], state["lost"], state["doubled"], state["samples"]) == (2, 0, 0, 243)
    if backend == "dali-cpu":
        assert child_processes() == before  # nothing forks once DALI runs


@violent
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_while_waiting_loses_nothing(make: Make, backend: str, workers: int) -> None:
    loader = make(shuffle=True, num_workers=workers, transform=v1.Compose([v1.Resize((300, 300)), v1.ToTensor()]))
    switch_to(loader, backend)
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
    assert torch.cat(delivered).tolist() == planned(loader)
    check_counts(loader)


@violent
def test_workers_ended_by_a_notebooks_interrupt_are_replaced(make: Make) -> None:
    loader = make(shuffle=True)
    deliver(loader)
    old = child_processes()
    iterator = iter(loader)
    next(iterator)
    del iterator
    current = child_processes()
    interrupt(current)
    gone(old)
    assert deliver(loader)[1].tolist() == planned(loader)


@violent
def test_workers_that_still_count_as_alive_while_they_end_are_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(shuffle=True)
    iterator = iter(loader)
    next(iterator)
    del iterator
    dali_begins()  # workers are kept from one iteration to the next, as nothing has changed
    current = child_processes()
    interrupt(current)
    monkeypatch.setattr(torch_engine.WorkersEngine, "_alive", lambda _: True)
    assert deliver(loader)[1].tolist() == planned(loader)
    assert not current & child_processes()
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
    gone(set(workers))
    assert deliver(loader)[1].tolist() == planned(loader)


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
    baseline_threads, baseline = threads(), child_processes()

    loader = build()
    name = loader.id
    iterator = iter(loader)
    next(iterator)
    workers = child_processes() - baseline
    assert len(workers) == 2
    loader.switch(backend)
    wait_for(lambda: threads() > baseline_threads or backend == "torchvision", 30)
    assert name in [one.id for one in live()]
    del loader, iterator
    gc.collect()
    gone(workers)
    assert name not in [one.id for one in live()]
    wait_for(lambda: threads() <= baseline_threads, 15)


@pytest.mark.usefixtures("without_dali")
def test_release_in_the_middle_loses_nothing(make: Make) -> None:
    loader = make(shuffle=True)
    loader.switch("dali-cpu")
    others = child_processes()
    delivered = []
    for number, (_, targets) in enumerate(loader):
        delivered += targets.tolist()
        if number == 5:
            workers = child_processes() - others
            assert len(workers) == 2
            loader.release()
            gone(workers)
        if number == 10:
            switch_to(loader, "torchvision")
    assert delivered == planned(loader)
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
        gone({child})
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
        report.append(sum(len(labels) for _, labels in loader))  # of the wrapped DataLoader itself
        loader.release()
        del loader
        gc.collect()
        os.write(writer, repr(report).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"[0, 243]"
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


def test_a_transform_for_batches_that_comes_between_epochs_turns_dali_grey(folder: Path) -> None:
    dataset = ImageFolder(folder, fixed(8))
    loader = switch_to(switchable(DataLoader(dataset, batch_size=50)), "dali-cpu")
    assert deliver(loader)[0].shape[-1] == 8
    dataset.transform.transforms.insert(0, v2.MixUp(num_classes=3))  # nothing to do with one image
    iter(loader)
    assert loader.switch_state.active == "torchvision"
    assert "MixUp (transform 1 of 3)" in loader.state()["status"]
    assert not loader.backends["dali-cpu"].available


@violent
@pytest.mark.parametrize("seed", [*range(4), None], ids=str)
def test_workers_killed_at_any_moment_never_hang_the_loop(make: Make, seed: int | None) -> None:
    """One of them, or all at once; it is raised as torch does, and the next iteration is whole."""
    chance = random.Random(seed)
    before = child_processes()
    loader = make(shuffle=True, batch_size=2)
    iterator = iter(loader)
    next(iterator)
    victims = sorted(child_processes() - before)
    victims = victims if seed is None else [chance.choice(victims)]

    def kill() -> None:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    killer = threading.Timer(chance.random() * 0.1 if seed is not None else 0.0, kill)
    killer.start()
    started = time.monotonic()

    def go_on() -> None:
        for _ in iterator:
            time.sleep(0.002)

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        go_on()
    assert time.monotonic() - started < 60  # torch looks every 5 s whether its workers live
    killer.join(10)
    with contextlib.suppress(RuntimeError):  # torch reports the second one wherever the main thread is when it ends
        gone(set(victims))
    assert deliver(loader)[1].tolist() == planned(loader)
    assert loader.state()["lost"] == 0


def test_a_loader_that_is_collected_inside_its_own_engine_is_released_when_that_is_left(make: Make) -> None:
    """Python's collector runs on whichever thread allocates: it may be one that is preparing an engine."""
    loader = make(num_workers=0)
    pooled = loader.pool["torchvision"]
    released = threading.Event()
    pooled.engine.release = released.set  # type: ignore[method-assign]
    with pooled.use():
        loader.end()
        assert not released.wait(0.1)
    assert released.wait(10)


def test_a_loader_that_is_collected_waits_for_no_thread_that_builds_an_engine(make: Make) -> None:
    """Building DALI's imports it: the collector may run where its thread has the lock of that import."""
    loader = make(num_workers=0)
    pooled = loader.pool["torchvision"]
    imports, builds, released = threading.Lock(), threading.Event(), threading.Event()
    pooled.engine.release = released.set  # type: ignore[method-assign]

    def build() -> None:
        with pooled.use():
            builds.set()
            with imports:
                pass

    with imports:
        thread = threading.Thread(target=build)
        thread.start()
        assert builds.wait(10)
        loader.__del__()
        assert not released.is_set()
    assert released.wait(10)
    thread.join()


def is_free(pooled: PooledEngine) -> bool:
    lock = pooled.use()
    if not lock.acquire(timeout=5):
        return False
    lock.release()
    return True


@violent
def test_no_interrupt_leaves_an_engine_occupied(make: Make) -> None:
    pooled: PooledEngine = make(num_workers=0).pool["torchvision"]
    kept: list[BaseException] = []  # as IPython keeps the last one, and with it every frame that it went through
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    random = np.random.default_rng(0)
    try:
        for delay in random.uniform(1e-5, 2e-4, 3000):
            try:
                until = time.monotonic() + 0.05
                signal.setitimer(signal.ITIMER_REAL, delay)
                while time.monotonic() < until:  # an interrupt that falls into some object's __del__ is swallowed
                    with pooled.use():
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                kept.append(error)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert len(kept) > 2000
    with ThreadPoolExecutor(1) as other:
        assert other.submit(is_free, pooled).result(10)


def test_an_interrupt_while_an_engine_changes_hands_loses_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(shuffle=True, batch_size=16, num_workers=2)
    first = iter(loader)
    delivered = [next(first)[1]]
    engine = loader.pool["torchvision"].engine
    real, calls = engine.receive, iter(range(9))

    def receive() -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real()

    monkeypatch.setattr(engine, "receive", receive)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    monkeypatch.undo()
    delivered += [targets for _, targets in first]
    assert torch.cat(delivered).tolist() == planned(loader, 0)
    counts = loader.epochs()[0]
    assert (counts["samples"], counts["lost"], counts["doubled"]) == (243, 0, 0)


def test_an_epoch_whose_beginning_is_interrupted_is_begun_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(shuffle=True, batch_size=16, num_workers=2)
    first = iter(loader)
    next(first)
    state = loader.state_dict()
    rest = [targets.tolist() for _, targets in first]
    loader.load_state_dict(state)
    engine = loader.pool["torchvision"].engine
    kept: list[BaseException] = []  # as IPython keeps the last one, and with it every frame that it went through

    def start(pull: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "start", start)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as interrupt:
            iter(loader)
        kept.append(interrupt.value)
    monkeypatch.undo()
    assert [targets.tolist() for _, targets in loader] == rest
    assert [counts["epoch"] for counts in loader.epochs()] == [0]
    next(iter(loader))
    assert [counts["epoch"] for counts in loader.epochs()] == [0, 1]


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.usefixtures("without_dali")  # else DALI may be ready before any worker is wanted
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
def test_an_iteration_that_was_left_goes_without_a_collector(folder: Path, backend: str) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=8, num_workers=2))
    loader.switch(backend)
    name, others = loader.id, child_processes()
    for _ in loader:
        break
    workers = child_processes() - others
    assert workers
    del loader
    assert name not in [one.id for one in live()]
    gone(workers)


@pytest.mark.usefixtures("no_garbage_collection")
def test_an_iterator_that_was_interrupted_goes_without_a_collection(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(batch_size=16, num_workers=0)
    iterator = iter(loader)
    engine = loader.pool["torchvision"].engine

    def receive() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "receive", receive)
    there = weakref.ref(iterator)
    with contextlib.suppress(KeyboardInterrupt):
        next(iterator)
    assert there() is iterator
    del iterator
    assert there() is None
