"""Ctrl-C in places that are narrow: found by the state machine, kept as cases of their own."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernel_monitor.loaders.switching.engine_pool import PooledEngine

from ..conftest import Make, violent


def is_free(pooled: PooledEngine) -> bool:
    """Whether this thread can enter the engine."""
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
    labels = [target for _, target in loader.dataset.samples]
    assert [label for batch in delivered for label in batch.tolist()] == [labels[index] for index in loader.plan(0)]
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
    gc.disable()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            next(iterator)
        assert there() is iterator
        del iterator
        assert there() is None
    finally:
        gc.enable()
