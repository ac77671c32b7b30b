"""Whatever is clicked when: every sample of the plan, once, in order, with the same crops and flips."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
import torch

from kernel_monitor.loaders import SwitchableLoader, listen

from ..conftest import Make, check_counts, deliver, planned, switch_to


class Clicker:
    """Another thread that clicks at random, each time once the click before has taken effect."""

    def __init__(self, loader: SwitchableLoader, seed: int) -> None:
        self._loader = loader
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.durations: list[float] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Clicker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.error is None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                target = "torchvision" if self._loader.backend == "dali-cpu" else "dali-cpu"
                started = time.perf_counter()
                self._loader.switch(target)
                self.durations.append(time.perf_counter() - started)
                while not self._stop.is_set() and self._loader.switch_state.wanted is not None:
                    time.sleep(0.002)
                time.sleep(self._random.random() * 0.01)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error


@pytest.mark.parametrize("workers", [0, 2])
def test_many_switches_over_two_epochs(make: Make, workers: int) -> None:
    torch.manual_seed(3)
    undisturbed = make(shuffle=True, batch_size=2, num_workers=workers)
    expected = [deliver(undisturbed) for _ in range(2)]
    plans = [undisturbed.plan(epoch) for epoch in range(2)]
    torch.manual_seed(3)
    loader = make(shuffle=True, batch_size=2, num_workers=workers)
    switch_to(loader, "dali-cpu")  # so that importing DALI does not take up the first epoch
    delivered: list[Any] = []
    with Clicker(loader, seed=1) as clicker:
        for _ in range(2):
            images, targets = [], []
            for batch in loader:
                images.append(batch[0])
                targets.append(batch[1])
                time.sleep(0.003)
            assert len(images[-1]) == 1  # 243 is odd: the last batch is partial
            delivered.append((torch.cat(images), torch.cat(targets)))
    assert len(loader.history) >= 20
    assert {entry.epoch for entry in loader.history} == {0, 1}
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"], state["planned"]) == (0, 0, 243, 243)
    for epoch in range(2):
        assert loader.plan(epoch) == plans[epoch]
        assert sorted(loader.plan(epoch)) == list(range(243))
        assert torch.equal(delivered[epoch][1], expected[epoch][1])
        decoders = loader.decoders(epoch)
        assert set(decoders) == {"torchvision", "dali-cpu"}
        assert len(decoders) == 243
        # The same crop and flip gives pixels that differ by rounding; another crop or flip differs by far more.
        difference = (delivered[epoch][0] - expected[epoch][0]).abs().mean(dim=(1, 2, 3)) * 255 * 0.226
        assert difference.max() < 1.5
        same = torch.tensor([decoder == "torchvision" for decoder in decoders])
        assert torch.equal(delivered[epoch][0][same], expected[epoch][0][same])
    assert sorted(clicker.durations)[len(clicker.durations) // 2] < 0.003


@pytest.mark.parametrize("first", ["torchvision", "dali-cpu"])
def test_the_incoming_engine_delivers_within_what_is_in_flight_plus_one(make: Make, first: str) -> None:
    loader = make(shuffle=True, batch_size=2)
    loader.switch(first)
    ready_at: list[int] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "engine-ready" and event["loader"] == loader.id:
            ready_at.append(loader.state()["batch"])

    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    assert loader.backend == first
    unlisten = listen(on_event)
    incoming = "dali-cpu" if first == "torchvision" else "torchvision"
    in_flight = loader.pool[first].engine.depth
    loader.switch(incoming)
    for _ in iterator:
        if loader.backend == incoming:
            break
        time.sleep(0.02)
    unlisten()
    (entry,) = loader.history[-1:]
    assert entry.target == incoming
    assert entry.batch <= ready_at[0] + in_flight + 1
    assert entry.first > entry.asked


def test_an_engine_that_fails_in_the_middle_gives_its_batches_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(shuffle=True, batch_size=4, num_workers=2)
    loader.switch("dali-cpu")
    iterator = iter(loader)
    targets = [next(iterator)[1] for _ in range(3)]
    assert loader.backend == "dali-cpu"

    def fail() -> Any:
        raise RuntimeError("the engine fell over")

    monkeypatch.setattr(loader.pool["dali-cpu"].engine, "receive", fail)
    targets += [batch[1] for batch in iterator]
    state = check_counts(loader)
    assert loader.backend == "torchvision"
    assert "the engine fell over" in state["status"]
    assert torch.cat(targets).tolist() == planned(loader)


def test_zip_of_a_loader_with_itself_is_two_epochs(make: Make) -> None:
    for backend in ("torchvision", "dali-cpu"):
        loader = make(shuffle=True, batch_size=16)
        loader.switch(backend)
        left, right = [], []
        for (_, a), (_, b) in zip(loader, loader, strict=True):
            left += a.tolist()
            right += b.tolist()
        assert (left, right) == (planned(loader, 0), planned(loader, 1))
        assert sorted(loader.plan(0)) == sorted(loader.plan(1)) == list(range(243))
        loader.release()
