"""Other threads ask every loader for its state at any time, also while loaders are made: none is ever half-built."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor import watch_loader
from kernel_monitor.loaders import listen, live, switchable
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps.watched_loader import live as sources
from kernel_monitor.steps.watched_loader import step
from kernel_monitor.store import Store

from .conftest import augmented


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def hammering(*asks: Callable[[], object]) -> Iterator[list[str]]:
    """Each of these over and over, on a thread of its own; what they raised, as text."""
    over = threading.Event()
    failed: list[str] = []

    def hammer(ask: Callable[[], object]) -> None:
        while not over.is_set() and len(failed) < 5:
            try:
                ask()
            except Exception:  # noqa: BLE001 - whatever it is, the test names it
                failed.append(traceback.format_exc())

    threads = [threading.Thread(target=hammer, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        over.set()
        for thread in threads:
            thread.join()


def ask_all() -> None:
    everything: list[Any] = [*live(), *sources()]
    for one in everything:
        one.state()
        one.epochs()
        one.meter.totals()
        assert one.name
        assert one.meter.loader == one.id
    for loader in live():
        assert loader.worker_pids == []
        assert loader.backends
        assert loader.clicks is not None
        repr(loader)


def test_no_loader_is_seen_before_it_is_whole(folder: Path) -> None:
    data = ImageFolder(folder, augmented())
    following = LoaderTracker(Store(), lambda monotonic: monotonic, lambda *_args, **_fields: None)
    heard: list[tuple[str, bool]] = []

    def registered(event: dict[str, Any]) -> None:
        heard.append((event["kind"], event["loader"] in {one.id for one in live()}))

    unlisten = listen(registered)
    try:
        with hammering(ask_all, following.refresh, lambda: following.values(0.1)) as failed:
            for number in range(150):
                loader = switchable(DataLoader(data, batch_size=8))
                loader.set(prefetch=2 + number % 3)
                watched = watch_loader([[0]] * 3, name="watched")
                list(watched)
                with step(f"loop {number}"):
                    pass
        assert failed == []
        assert heard
        assert all(known for _, known in heard), [kind for kind, known in heard if not known]
    finally:
        unlisten()
        gc.collect()


def test_ids_are_in_the_order_of_making(folder: Path) -> None:
    data = ImageFolder(folder, augmented())
    made = [switchable(DataLoader(data)) for _ in range(3)]
    numbers = [int(one.id.removeprefix("loader-")) for one in made]
    assert numbers == sorted(set(numbers))
    assert [one for one in live() if one in made] == made
