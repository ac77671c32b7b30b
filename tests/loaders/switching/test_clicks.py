"""What became of every click: done, superseded, cancelled or failed, with times."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import Click, SwitchableLoader, switchable
from kernel_monitor.loaders.engines import worker_start

from ..conftest import Make, augmented, deliver, settle, switch_to


def outcomes(loader: SwitchableLoader) -> list[tuple[str, str]]:
    return [(click.target, click.outcome) for click in loader.clicks]


def own(events: list[dict[str, Any]], loader: SwitchableLoader) -> list[dict[str, Any]]:
    return [event for event in events if event["loader"] == loader.id]


def test_done_with_its_first_batch(make: Make, events: list[dict[str, Any]]) -> None:
    loader = make(batch_size=4, num_workers=0)
    before = time.monotonic()
    iterator = iter(loader)
    next(iterator)
    switch_to(loader, "dali")
    (click,) = loader.clicks
    assert click == Click("dali-cpu", "torchvision", click.asked)
    assert (click.outcome, click.ended, click.epoch, click.batch, click.message) == ("pending", None, None, None, None)
    assert (loader.state()["status"], loader.backend) == ("dali-cpu ready, from the next batch", "torchvision")
    next(iterator)
    assert (loader.state()["status"], loader.state()["wanted"]) == ("dali-cpu since batch 1", None)
    (click,) = loader.clicks
    assert (click.outcome, click.epoch, click.batch) == ("done", 0, 1)
    assert click.ended is not None
    assert before < click.asked < click.ended < time.monotonic()
    (switch,) = loader.history
    assert (switch.asked, switch.batch) == (click.asked, click.batch)
    asked, ready, last = own(events, loader)
    assert [asked["kind"], ready["kind"], last["kind"]] == ["switch-asked", "engine-ready", "switch"]
    assert (last["source"], last["target"], last["epoch"], last["batch"]) == ("torchvision", "dali-cpu", 0, 1)
    assert last["asked"] < last["first"] <= last["monotonic"]


def test_a_newer_click_and_the_way_back_supersede(make: Make, events: list[dict[str, Any]]) -> None:
    loader = make(shuffle=True, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    with loader.pool["dali-cpu"].use():  # the engine cannot be built meanwhile
        loader.switch("dali-cpu")
        assert (loader.state()["wanted"], loader.state()["status"]) == ("dali-cpu", "switching to dali-cpu…")
        loader.switch("dali-cpu")  # is on its way already: not another click
        loader.switch("torchvision")
        assert outcomes(loader) == [("dali-cpu", "superseded"), ("torchvision", "pending")]
    assert (loader.state()["wanted"], loader.state()["status"]) == (None, "torchvision")
    next(iterator)
    assert outcomes(loader) == [("dali-cpu", "superseded"), ("torchvision", "done")]
    assert [event["kind"] for event in own(events, loader)] == ["switch-asked", "switch-asked", "switch-superseded"]
    loader.switch("torchvision")  # is in use
    assert len(loader.clicks) == 2
    # Superseded although its engine was ready: nothing was delivered by it.
    switch_to(loader, "dali-cpu")
    loader.switch("torchvision")
    next(iterator)
    assert outcomes(loader)[2:] == [("dali-cpu", "superseded"), ("torchvision", "done")]
    assert (loader.history, loader.backend) == ([], "torchvision")
    assert [event["kind"] for event in own(events, loader)].count("switch-superseded") == 2


def test_failed_with_the_cause(make: Make, monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]) -> None:
    from kernel_monitor.loaders.engines import dali_graph

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such decoder here\nand a long trace")

    monkeypatch.setattr(dali_graph.Translated, "build", fail)
    loader = switch_to(make(num_workers=0), "dali-cpu")
    (click,) = loader.clicks
    assert (click.outcome, click.message) == ("failed", "no such decoder here")
    assert click.ended is not None
    assert len(deliver(loader)[1]) == 243
    assert loader.state()["status"] == "dali-cpu failed: no such decoder here; torchvision goes on"
    assert loader.history == []
    asked, failed = own(events, loader)
    assert (asked["kind"], failed["kind"], failed["message"]) == ("switch-asked", "switch-failed", click.message)


def test_a_click_back_is_done_once_its_own_batches_come(make: Make) -> None:
    loader = make(num_workers=2, batch_size=4)
    loader.switch("dali-cpu")
    iterator = iter(loader)
    next(iterator)
    assert outcomes(loader) == [("dali-cpu", "done")]
    loader.switch("torchvision")
    next(iterator)  # at this boundary torchvision begins to take; DALI's batches come first
    switch_to(loader, "dali-cpu")
    assert outcomes(loader)[1:] == [("torchvision", "superseded"), ("dali-cpu", "pending")]
    kinds = []
    while loader.clicks[-1].outcome == "pending":
        next(iterator)
        kinds.append(loader.backend)
    assert "torchvision" in kinds  # what it had taken was delivered all the same
    assert kinds[-1] == "dali-cpu"
    assert outcomes(loader)[-1] == ("dali-cpu", "done")
    assert loader.state()["lost"] == 0


def test_an_engine_that_fails_before_its_first_batch_is_a_failed_click(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(num_workers=0)
    switch_to(loader, "dali-cpu")

    def fail(_: Any) -> None:
        raise RuntimeError("does not start")

    monkeypatch.setattr(loader.pool["dali-cpu"].engine, "start", fail)
    assert len(deliver(loader)[1]) == 243
    assert [(click.outcome, click.message) for click in loader.clicks] == [("failed", "does not start")]
    assert loader.state()["lost"] == 0


def test_what_is_pending_at_the_end_of_an_epoch_is_carried_into_the_next(make: Make) -> None:
    loader = make(num_workers=0)
    deliver(loader)
    switch_to(loader, "dali-cpu")
    assert outcomes(loader) == [("dali-cpu", "pending")]
    next(iter(loader))
    assert [(click.outcome, click.epoch, click.batch) for click in loader.clicks] == [("done", 1, 0)]


def test_release_cancels(make: Make, events: list[dict[str, Any]]) -> None:
    loader = make(num_workers=0)
    for ready in (False, True):
        guard = threading.Event()
        if ready:
            switch_to(loader, "dali-cpu")
        else:
            with loader.pool["dali-cpu"].use():
                loader.switch("dali-cpu")
                loader.switch_state.cancel()  # `release` itself would wait for the engine, which is in use here
        loader.release()
        guard.set()
        assert outcomes(loader)[-1] == ("dali-cpu", "cancelled")
        assert (loader.state()["wanted"], loader.state()["status"]) == (None, "torchvision")
    assert [event["target"] for event in events if event["kind"] == "switch-cancelled"] == ["dali-cpu", "dali-cpu"]
    assert len(deliver(loader)[1]) == 243
    assert loader.decoded() == {"torchvision": 243}
    assert loader.history == []


def test_a_loader_that_is_dropped_cancels(folder: Path, events: list[dict[str, Any]]) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=8))
    name = loader.id
    switch_to(loader, "dali-cpu")
    del loader
    gc.collect()
    assert [event["loader"] for event in events if event["kind"] == "switch-cancelled"] == [name]


@pytest.mark.parametrize("moment", ["asked for", "between two batches", "before an epoch"])
def test_an_interrupt_of_the_preparation_leaves_the_click_to_the_next_boundary(
    moment: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the status would show for ever that the loader is switching, and further clicks would be ignored."""
    loader = make(batch_size=4, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    interrupts = [KeyboardInterrupt()]

    def before_dali() -> None:
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(worker_start, "before_dali", before_dali)
    monkeypatch.setattr(worker_start, "ready_for_dali", lambda: not interrupts)
    if moment == "asked for":
        with pytest.raises(KeyboardInterrupt):
            loader.switch("dali-cpu")
    else:
        thread = threading.Thread(target=loader.switch, args=("dali-cpu",))
        thread.start()
        thread.join()
        assert loader.preparation.deferred is not None
        with pytest.raises(KeyboardInterrupt):
            next(iterator) if moment == "between two batches" else iter(loader)
    assert interrupts == []
    assert outcomes(loader) == [("dali-cpu", "pending")]
    next(iter(loader))
    settle(loader)
    list(loader)
    assert loader.backend == "dali-cpu"
    assert outcomes(loader) == [("dali-cpu", "done")]
