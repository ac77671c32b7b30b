"""Workers, batches in flight and threads, changed at any moment: the same batches in the same order, none lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import Knobs, listen, switchable
from kernel_monitor.loaders.engines import fork_server, torch_engine, worker_start

from ..conftest import (
    Make,
    augmented,
    check_counts,
    child_processes,
    dali_begins,
    deliver,
    planned,
    settle,
    switch_to,
    wait_for,
)


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []
    unlisten = listen(lambda event: heard.append(event) if event["kind"] == "knobs" else None)
    yield heard
    unlisten()


def test_bad_values_are_refused_in_a_sentence(make: Make) -> None:
    loader = make(num_workers=0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"workers": -1}, r"set\(workers=-1\): give a whole number from 0 to 256"),
        ({"workers": 1.5}, "whole number"),
        ({"workers": True}, "whole number"),
        ({"workers": 10**6}, "from 0 to 256"),
        ({"prefetch": 0}, "from 1"),
        ({"threads": "4"}, "whole number from 1"),
    ]
    before = loader.knobs
    for wrong, said in cases:
        with pytest.raises(MonitorError, match=said):
            loader.set(**wrong)
    assert loader.knobs == before


def test_threads_are_refused_where_dali_cannot_run(folder: Path) -> None:
    dataset = ImageFolder(folder, augmented(), loader=lambda path: Image.open(path).convert("RGB"))
    loader = switchable(DataLoader(dataset, batch_size=4))
    assert loader.knobs.threads is None
    assert loader.state()["knobs"]["threads"] is None
    with pytest.raises(
        MonitorError,
        match=r"for the engine threads and for DALI. It computes what DALI can compute. The data",
    ):
        loader.set(threads=2)
    loader.set(prefetch=4)


def test_the_knobs_show_what_the_wrapped_loader_has(make: Make, folder: Path) -> None:
    assert make(num_workers=0).knobs[:2] == (0, 2)
    assert make(num_workers=2, prefetch_factor=5).knobs[:2] == (2, 5)
    loader = make(num_workers=2)
    assert isinstance(loader.knobs, Knobs)
    loader.set(prefetch=3, threads=1)
    assert loader.knobs == (2, 3, 1)
    assert loader.state()["knobs"] == {"workers": 2, "prefetch": 3, "threads": 1}


@pytest.mark.usefixtures("without_dali")
def test_workers_from_none_to_some_and_back_in_the_middle(make: Make, told: list[dict[str, Any]]) -> None:
    before = child_processes()
    torch.manual_seed(1)
    undisturbed = make(shuffle=True, num_workers=0, batch_size=4)
    expected = deliver(undisturbed)
    torch.manual_seed(1)
    loader = make(shuffle=True, num_workers=0, batch_size=4)
    images, targets, seen = [], [], []
    for number, batch in enumerate(loader):
        images.append(batch[0])
        targets.append(batch[1])
        if number in (3, 20, 40, 50):
            count = {3: 2, 20: 1, 40: 3, 50: 0}[number]
            loader.set(workers=count)
            assert loader.knobs.workers == count
        elif number in (19, 39, 49, 60):
            wait_for(lambda: len(child_processes() - before) == loader.knobs.workers)
            seen.append(len(child_processes() - before))
    assert seen == [2, 1, 3, 0]
    assert loader.plan() == undisturbed.plan()
    assert torch.equal(torch.cat(targets), expected[1])
    assert torch.equal(torch.cat(images), expected[0])
    check_counts(loader)
    assert [event["workers"] for event in told] == [2, 1, 3, 0]
    assert loader.history == []  # no switch took place


@pytest.mark.usefixtures("without_dali")
def test_prefetch_is_what_is_in_flight(make: Make) -> None:
    loader = make(num_workers=1, batch_size=2)
    iterator = iter(loader)
    next(iterator)
    loader.set(prefetch=5)
    for _ in range(12):
        next(iterator)
    assert loader.pool["torchvision"].engine.depth == 5
    assert loader.newest is not None
    assert loader.newest.in_flight == 5
    loader.set(prefetch=1)
    for _ in range(12):
        next(iterator)
    assert loader.newest.in_flight == 1
    rest = [targets for _, targets in iterator]
    assert len(torch.cat(rest)) == 243 - 25 * 2
    assert loader.state()["lost"] == 0


def test_threads_and_prefetch_of_dali_in_the_middle(make: Make) -> None:
    loader = make(num_workers=0, batch_size=4, shuffle=True)
    switch_to(loader, "dali-cpu")
    targets = []
    first: Any = loader.pool["dali-cpu"].engine
    for number, batch in enumerate(loader):
        targets += batch[1].tolist()
        if number == 5:
            loader.set(threads=1, prefetch=2)
            wait_for(lambda: loader.pool["dali-cpu"].engine is not first)
        if number == 20:
            engine: Any = loader.pool["dali-cpu"].engine
            assert (engine.depth, engine._threads) == (2, 1)
            assert engine._pipeline is not None
            wait_for(lambda: first._pipeline is None)  # the old one was given back
    assert targets == planned(loader)
    assert loader.decoded() == {"dali-cpu": 243}
    assert loader.state()["lost"] == 0
    assert len(loader.history) == 1


def test_setting_the_same_again_does_nothing(make: Make, told: list[dict[str, Any]]) -> None:
    loader = make(num_workers=0)
    switch_to(loader, "dali-cpu")
    slots = {name: loader.pool[name] for name in ("torchvision", "dali-cpu")}
    loader.set(**{name: value for name, value in loader.knobs._asdict().items() if name != "prefetch"})
    loader.set()
    assert {name: loader.pool[name] for name in slots} == slots
    assert told == []


@pytest.mark.usefixtures("without_dali")
def test_between_epochs_and_before_the_first(make: Make) -> None:
    before = child_processes()
    loader = make(num_workers=0, batch_size=16)
    loader.set(workers=2)
    deliver(loader)
    assert len(child_processes() - before) == 2
    loader.set(workers=1)
    deliver(loader)
    wait_for(lambda: len(child_processes() - before) == 1)
    assert [epoch["samples"] for epoch in loader.epochs()] == [243, 243]


def test_while_a_switch_is_under_way_and_from_other_threads(make: Make) -> None:
    loader = make(num_workers=2, batch_size=2, shuffle=True)
    stop, errors = threading.Event(), list[BaseException]()

    def turn(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                loader.set(threads=chance.randint(1, 3), prefetch=chance.randint(1, 4))
                if chance.random() < 0.5:
                    loader.switch(chance.choice(["torchvision", "dali-cpu"]))
                stop.wait(chance.random() * 0.03)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    iterator = iter(loader)  # the workers are forked before DALI runs
    turners = [threading.Thread(target=turn, args=(seed,)) for seed in range(2)]
    for turner in turners:
        turner.start()
    try:
        for epoch in range(2):
            targets = []
            for batch in iterator:
                targets += batch[1].tolist()
                time.sleep(0.003)
            assert targets == planned(loader, epoch)
            check_counts(loader)
            if epoch == 0:
                iterator = iter(loader)
    finally:
        stop.set()
        for turner in turners:
            turner.join(150)
    assert errors == []
    assert not any(turner.is_alive() for turner in turners)


def test_of_quick_changes_the_newest_counts(make: Make, told: list[dict[str, Any]]) -> None:
    loader = make(num_workers=0, batch_size=4)
    switch_to(loader, "dali-cpu")
    iterator = iter(loader)
    next(iterator)
    for threads in (1, 2, 3, 2, 1, 3):
        loader.set(threads=threads)
    assert loader.knobs.threads == 3

    def newest() -> bool:
        engine: Any = loader.pool["dali-cpu"].engine
        ours = [event for event in told if event["loader"] == loader.id]  # an earlier test's may come late
        return engine._threads == 3 and bool(ours) and ours[-1]["threads"] == 3

    wait_for(newest)
    rest = list(iterator)
    assert rest
    assert loader.state()["lost"] == 0


@pytest.mark.usefixtures("without_dali")
def test_what_does_not_start_is_rolled_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    real = torch_engine.WorkersEngine._build

    def build(self: Any) -> Any:
        if self._workers == 3:
            raise OSError("Cannot allocate memory")
        return real(self)

    monkeypatch.setattr(torch_engine.WorkersEngine, "_build", build)
    loader = make(num_workers=2, batch_size=4, shuffle=True)
    targets = []
    for number, batch in enumerate(loader):
        targets += batch[1].tolist()
        if number == 10:
            loader.set(workers=3)
    assert targets == planned(loader)
    assert loader.knobs.workers == 2
    assert "Cannot allocate memory; all goes on as before" in loader.state()["status"]
    assert [(event["workers"], event["message"]) for event in told] == [(3, None), (2, "Cannot allocate memory")]
    assert loader.state()["lost"] == 0
    assert deliver(loader)[1].tolist() == planned(loader)


def test_a_pipeline_that_cannot_be_built_with_the_new_values_leaves_the_old_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, told: list[dict[str, Any]]
) -> None:
    loader = make(num_workers=0, batch_size=4)
    switch_to(loader, "dali-cpu")
    from kernel_monitor.loaders.engines.pipeline_engine import PipelineEngine

    before = loader.knobs
    iterator = iter(loader)
    next(iterator)
    old = loader.pool["dali-cpu"]

    def fail(_: Any) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(PipelineEngine, "prepare", fail)
    loader.set(threads=7)
    wait_for(lambda: bool(told))
    assert told[-1]["message"] == "no more threads"
    assert loader.knobs == before
    assert loader.pool["dali-cpu"] is old
    assert sum(len(targets) for _, targets in iterator) == 243 - 4
    assert loader.decoded() == {"dali-cpu": 243}


def test_new_workers_are_not_forked_once_dali_runs(make: Make) -> None:
    loader = make(num_workers=0, batch_size=4, shuffle=True)
    switch_to(loader, "dali-cpu")
    iterator = iter(loader)
    targets = next(iterator)[1].tolist()
    loader.switch("torchvision")
    targets += next(iterator)[1].tolist()
    first = loader.pool["torchvision"]
    loader.set(workers=1)
    assert loader.pool["torchvision"] is first  # until the new one has answered
    wait_for(lambda: loader.pool["torchvision"] is not first)
    engine: Any = loader.pool["torchvision"].engine
    assert engine.started
    server = fork_server.server()
    assert server is not None
    assert {psutil.Process(pid).ppid() for pid in loader.worker_pids} == {server.pid}
    for _, more in iterator:
        targets += more.tolist()
    assert targets == planned(loader)
    assert loader.state()["lost"] == 0
    deliver(loader)
    assert loader.pool["torchvision"].engine is engine  # kept for the next epoch


def test_what_cannot_be_sent_keeps_the_workers_that_there_are(folder: Path) -> None:
    dataset = ImageFolder(folder, augmented())
    loader = switchable(DataLoader(dataset, batch_size=16, num_workers=0))
    dali_begins()
    dataset.lock = threading.Lock()  # the fork server has not inherited it
    loader.set(prefetch=3)
    with pytest.raises(MonitorError, match=r"No new workers.*cannot be sent to them: cannot pickle '_thread.lock'"):
        loader.set(workers=2)
    assert loader.knobs.workers == 0
    assert len(deliver(loader)[1]) == 243


class Counted:
    pickled = 0

    def __reduce__(self) -> Any:
        Counted.pickled += 1
        return Counted, ()


def test_whether_a_large_data_set_can_be_sent_is_found_out_from_a_part_of_it(folder: Path) -> None:
    dataset = ImageFolder(folder, augmented())
    dataset.notes = [Counted() for _ in range(10_000)]
    dataset.features = torch.zeros(100_000)
    loader = switchable(DataLoader(dataset, batch_size=16))
    dali_begins()
    Counted.pickled = 0
    assert worker_start.why_not_sent(loader._keyed, loader._wrapped) is None
    assert Counted.pickled == 100
    assert not dataset.features.is_shared()


def test_idle_engines_are_given_back_on_request(make: Make) -> None:
    loader = make(num_workers=2, batch_size=2)
    before = child_processes()
    iterator = iter(loader)
    next(iterator)
    loader.switch("dali-cpu")
    while loader.backend != "dali-cpu":
        next(iterator)
    own = child_processes() - before
    assert len(own) == 2  # kept: the way back is quick
    loader.release(idle=True)
    wait_for(lambda: not child_processes() & own)
    for _ in range(10):
        next(iterator)
    assert loader.backend == "dali-cpu"
    loader.switch("torchvision")
    settle(loader)  # its workers are started anew, beside DALI
    rest = list(iterator)
    assert rest
    assert loader.backend == "torchvision"
    assert (loader.state()["samples"], loader.state()["lost"]) == (243, 0)
