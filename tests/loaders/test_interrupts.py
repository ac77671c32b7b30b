"""Ctrl-C in places that are narrow: found by the state machine, kept as cases of their own."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernel_monitor.loaders.segment import Slot

from .conftest import Make, violent


@violent
def test_no_interrupt_leaves_an_engine_occupied(make: Make) -> None:
    slot: Slot = make(num_workers=0).slot("torchvision")
    kept: list[BaseException] = []  # as IPython keeps the last one, and with it every frame that it went through
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    random = np.random.default_rng(0)
    try:
        for delay in random.uniform(1e-5, 2e-4, 3000):
            try:
                until = time.monotonic() + 0.05
                signal.setitimer(signal.ITIMER_REAL, delay)
                while time.monotonic() < until:  # an interrupt that falls into some object's __del__ is swallowed
                    with slot.use():
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                kept.append(error)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert len(kept) > 2000
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: slot.idle).result(10)


def test_an_interrupt_while_an_engine_changes_hands_loses_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(shuffle=True, batch_size=16, num_workers=2)
    first = iter(loader)
    delivered = [next(first)[1]]
    engine = loader.slot("torchvision").engine
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
