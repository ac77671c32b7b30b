"""Ctrl-C in places that are narrow: found by the state machine, kept as cases of their own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kernel_monitor.loaders.segment import Slot

from .conftest import Make


class Interrupting(threading.Condition):
    """Leaving it is interrupted, once, when `armed`."""

    armed = False

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("leaving", [False, True])
def test_an_interrupt_on_the_way_in_or_out_leaves_the_engine_free(make: Make, leaving: bool) -> None:
    slot: Slot = make(num_workers=0).slot("torchvision")
    condition = Interrupting()
    slot._free = condition
    condition.armed = not leaving
    with pytest.raises(KeyboardInterrupt), slot.use():
        condition.armed = leaving
    with slot.use() as engine:
        assert engine.name == "torchvision"
    assert slot.idle


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
