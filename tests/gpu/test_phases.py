"""Phases on a GPU: device times against known work, with nothing of ours that waits for the device."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from kernel_monitor import monitor, watch_loader
from kernel_monitor.steps import attached, automatic_watch, model_watch, phase_times
from kernel_monitor.steps.measured_step import ON_DEVICE, WARM_UP, Step
from kernel_monitor.steps.phase_times import thread_phases
from kernel_monitor.steps.watched_loader import live
from tests.unit.burning import Back

CYCLES = 20_000_000  # of `torch.cuda._sleep`: some ms


class Model(torch.nn.Module):
    def __init__(self, forward: int, backward: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.cycles = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(self.cycles[0])
        made: torch.Tensor = Back.apply(self.linear(x), lambda: torch.cuda._sleep(self.cycles[1]))
        return made


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    assert phase_times.DEVICE_FAILURE == []
    assert thread_phases().idle


def seconds(cycles: int) -> float:
    """How long the device needs, by events of the test's own."""
    found = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return float(statistics.median(found))


def run(name: str, model: Model, *, wait: float = 0.0, steps: int = 40, after: Callable[[], Any] | None = None) -> None:
    """A loop on batches in host memory."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(steps):
            time.sleep(wait)
            yield torch.ones(4, 8).pin_memory()

    watched = watch_loader(batches(), name=name)
    with monitor.watch(model, optimizer):
        for batch in watched:
            model(batch.to("cuda", non_blocking=True)).sum().backward()
            optimizer.step()
            if after is not None:
                after()
        KEPT.append(watched)


KEPT: list[Any] = []


def steady(name: str) -> list[Step]:
    time.sleep(1.2)  # the last ones of the loop are then passed on
    found = [one for one in live() if one.name == name][-1].meter.steps_since(0)[0]
    told = [one for one in found if one.flags & ON_DEVICE and not one.flags & WARM_UP]
    assert len(told) > len(found) / 2
    return told


def median(steps: list[Step], part: str) -> float:
    return float(statistics.median(getattr(one, part) for one in steps))


@pytest.fixture
def model() -> Model:
    return Model(CYCLES, 2 * CYCLES).cuda()


def test_phases_are_what_the_device_took(model: Model) -> None:
    expected = seconds(CYCLES)
    run("lone", model, after=torch.cuda.synchronize)
    steps = steady("lone")
    assert median(steps, "forward") == pytest.approx(expected, rel=0.02, abs=3e-4)
    assert median(steps, "backward") == pytest.approx(2 * expected, rel=0.02, abs=6e-4)
    assert 0 < median(steps, "copy") < 1e-3
    assert 0 < median(steps, "optimizer") < 2e-3
    assert all(one.wait + sum(one[6:10]) <= one.step + 1e-4 for one in steps)


def test_an_attached_loader_has_the_same_phases_without_a_line(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic_watch, "_torch_compiles", lambda: False)  # other tests of this process do
    expected = seconds(CYCLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(160, 8)), batch_size=4)
    attached.attach()
    try:
        for (batch,) in loader:
            model(batch.to("cuda")).sum().backward()
            optimizer.step()
            torch.cuda.synchronize()
        source = attached.attached(loader)
        assert source is not None
        time.sleep(1.2)
        steps = [one for one in source.meter.steps_since(0)[0] if one.flags & ON_DEVICE and not one.flags & WARM_UP]
        # It takes modules without hooks.
        torch.cuda.make_graphed_callables(watched_linear(), (torch.ones(4, 8, device="cuda"),))
    finally:
        attached.detach()
    assert len(steps) > 20
    assert median(steps, "forward") == pytest.approx(expected, rel=0.02, abs=3e-4)
    assert median(steps, "backward") == pytest.approx(2 * expected, rel=0.02, abs=6e-4)
    assert 0 < median(steps, "copy") < 1e-3
    assert 0 < median(steps, "optimizer") < 2e-3
    assert all(one.wait + sum(one[6:10]) <= one.step + 1e-4 for one in steps)
    assert not hasattr(torch.Tensor.to, "__wrapped__")


def watched_linear() -> torch.nn.Module:
    plain = torch.nn.Linear(8, 8).cuda()
    model_watch.watch_automatically(plain)
    assert plain._forward_hooks
    return plain


def test_a_loop_that_runs_ahead_of_the_device_is_not_waited_for(model: Model) -> None:
    whole = seconds(3 * CYCLES)
    began = time.monotonic()
    run("ahead", model, wait=whole / 4)
    launched = time.monotonic() - began
    torch.cuda.synchronize()
    assert launched < 0.9 * (time.monotonic() - began), "the loop was held up"
    # The loop's thread queries the events again: the device has passed all of them.
    [source for source in live() if source.name == "ahead"][-1].meter.end_iteration()
    steps = steady("ahead")
    assert median(steps, "wait") < 0.02 * whole
    assert median(steps, "step") == pytest.approx(whole, rel=0.1)


def test_a_slow_loader_lets_the_device_wait(model: Model) -> None:
    whole = seconds(3 * CYCLES)
    run("slow", model, wait=3 * whole)
    assert median(steady("slow"), "wait") == pytest.approx(2 * whole, rel=0.15)


def test_nothing_of_ours_synchronises(model: Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that it does not find every wait
        try:
            torch.cuda.set_sync_debug_mode("error")
            run("free", model)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_graph_can_be_captured_while_a_model_is_watched(model: Model) -> None:
    run("before", model, steps=5)
    plain = torch.nn.Linear(8, 8).cuda()
    batch = torch.ones(4, 8, device="cuda")
    with monitor.watch(plain):
        plain(batch)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = plain(batch)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, plain(batch))


def test_events_are_used_again(model: Model) -> None:
    phase_times.use_cuda()
    stamps = phase_times.stamps
    assert stamps is not None
    run("some", model, after=torch.cuda.synchronize)
    made = stamps.made
    run("more", model, steps=200, after=torch.cuda.synchronize)
    assert stamps.made - made < 64
