"""Phases in the GPU's own time, from events that are only asked, never waited for: against a stand-in of a stream."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernel_monitor import monitor
from kernel_monitor.steps import phase, phase_times, watch
from kernel_monitor.steps import step_meter as metering
from kernel_monitor.steps.measured_step import ON_DEVICE, Step
from kernel_monitor.steps.phase_times import MOST_MARKS, thread_phases
from kernel_monitor.steps.step_meter import PENDING, Meter, StepClock
from tests.unit.stream_standin import Device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device that this thread's models are on, with the host's clock in the test's hands."""
    found, book = Device(), thread_phases()
    monkeypatch.setattr("kernel_monitor.steps.phase_times.monotonic", lambda: found.now)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    monkeypatch.setattr("kernel_monitor.steps.watched_loader._cuda_in_use", lambda: False)
    before = book.trails
    phase_times.use_driver(found)
    book.on_device, book.trails, book.used = True, [], True
    yield found
    book.on_device, book.trails = False, before
    phase_times.use_driver(None)
    phase_times.DEVICE_FAILURE.clear()


class Loop:
    """A loop whose clock is told everything; phases in s: (host, device)."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.meter = Meter("loader-1")
        self.clock = StepClock(self.meter)
        self.meter.seen = 0b1111
        self.batch = 0

    def step(self, wait: float, *phases: tuple[str, float, float], after: float = 0.0) -> None:
        self.clock.ask()
        self.device.now += wait
        self.clock.got(4, batch=self.batch)
        self.batch += 1
        for name, host, seconds in phases:
            with phase(name):
                self.device.launch(seconds, host)
        self.device.now += after

    def steps(self) -> list[Step]:
        return self.meter.steps_since(0)[0]


def parts(step: Step) -> tuple[float, ...]:
    return step.wait, step.copy, step.forward, step.backward, step.optimizer


def test_a_step_is_what_the_device_did_in_it(device: Device) -> None:
    loop = Loop(device)
    for _ in range(6):
        # 10 ms for the batch, 2 ms to launch 30 ms of work; the loop then reads the loss, which waits.
        loop.step(0.010, ("copy", 0.0, 0.004), ("forward", 0.001, 0.010), ("backward", 0.001, 0.016), after=0.029)
    steps = loop.steps()
    assert len(steps) == 5
    for one in steps[1:]:
        assert one.flags & ON_DEVICE
        assert parts(one) == pytest.approx((0.010, 0.004, 0.010, 0.016, 0.0), abs=1.1e-3)
        assert one.step == pytest.approx(0.041)


def test_a_batch_that_came_while_the_device_was_still_busy_was_not_waited_for(device: Device) -> None:
    loop = Loop(device)
    for _ in range(20):
        # The loop waits 15 ms for each batch, but the device has 20 ms of work per step and never runs dry.
        loop.step(0.015, ("forward", 0.001, 0.008), ("backward", 0.004, 0.012))
    for one in loop.steps()[3:]:
        assert one.flags & ON_DEVICE
        assert one.wait == pytest.approx(0.0, abs=1e-9)
        assert (one.forward, one.backward, one.step) == pytest.approx((0.008, 0.012, 0.020))
    # The other way round the device waits, though the loop waits as long.
    slow = Loop(device)
    for _ in range(20):
        slow.step(0.015, ("forward", 0.001, 0.002), ("backward", 0.001, 0.003))
    for one in slow.steps()[3:]:
        assert one.wait == pytest.approx(0.012, abs=1e-3)
        assert sum(parts(one)) <= one.step + 1e-9


def test_times_come_late_and_in_order_and_nothing_is_waited_for(device: Device) -> None:
    draw = random.Random(seed := random.randrange(10_000))
    print(f"seed {seed}")
    loop, known = Loop(device), 0
    for _ in range(400):
        loop.step(draw.random() * 0.01, ("forward", 0.001, draw.random() * 0.1), after=draw.random() * 0.09)
        steps, newest = loop.meter.steps_since(known)
        assert [one.batch for one in steps] == list(range(known, newest))
        known = newest
        late = loop.meter.totals().steps - newest
        assert late <= PENDING
        if device.busy - device.now > 0.2:
            assert late > 0
    assert len(device.events) <= 8 * PENDING + 16, "events are used again"


def test_of_more_than_64_the_oldest_is_passed_on_with_the_hosts_times(device: Device) -> None:
    loop = Loop(device)
    for _ in range(3 * PENDING):
        loop.step(0.001, ("forward", 0.002, 1.0))
    steps = loop.steps()
    assert len(steps) == 3 * PENDING - 1 - PENDING
    told = [one for one in steps if not one.flags & ON_DEVICE]
    assert len(told) > PENDING
    assert all(one.forward == pytest.approx(0.002) for one in told)
    device.now = device.busy
    loop.step(0.001)
    assert len(loop.steps()) == 3 * PENDING
    assert all(one.flags & ON_DEVICE for one in loop.steps()[-PENDING:])
    assert len(device.events) < 8 * (PENDING + 3)


def test_the_last_steps_of_a_loop_do_not_wait_for_ever(device: Device) -> None:
    loop = Loop(device)
    for _ in range(5):
        loop.step(0.001, ("forward", 0.002, 10.0))
    loop.clock.ask()
    loop.clock.stop()
    asked = device.asked
    assert loop.steps() == []
    device.now += metering.LATE_S + 0.1
    assert [one.flags & ON_DEVICE for one in loop.steps()] == [0] * 5
    assert device.asked == asked, "who reads the steps asks the device nothing: it could be capturing a graph"
    left = Loop(device)
    for _ in range(3):
        left.step(0.001, ("forward", 0.002, 10.0))
    del left.clock
    device.now += metering.LATE_S + 0.1
    assert len(left.steps()) == 2


def test_totals_are_of_the_steps_that_are_settled(device: Device) -> None:
    loop = Loop(device)
    for _ in range(4):
        loop.step(0.001, ("forward", 0.002, 0.5))
    totals = loop.meter.totals()
    assert (totals.steps, totals.phased) == (3, 0)
    assert (totals.wait_s, totals.step_s) == pytest.approx((0.003, 0.009))
    device.now = device.busy
    loop.step(0.001)
    totals = loop.meter.totals()
    assert (totals.steps, totals.phased) == (4, 4)
    assert totals.forward_s == pytest.approx(2.002), "the first launch found the device idle"
    assert totals.forward_s + totals.phased_wait_s <= totals.phased_step_s + 1e-9


def test_while_a_graph_is_captured_nothing_is_recorded_or_asked(device: Device) -> None:
    loop = Loop(device)
    for number in range(12):
        device.graph = number in (4, 5)
        asked, made = device.asked, len(device.events)
        loop.step(0.001, ("forward", 0.002, 0.003))
        if device.graph and number == 5:
            assert (device.asked, len(device.events)) == (asked, made)
    device.graph = False
    device.now = device.busy
    loop.step(0.001)
    flags = [bool(one.flags & ON_DEVICE) for one in loop.steps()]
    assert flags[:3] == [True] * 3
    assert flags[3:6] == [False] * 3, "those that began, ran or ended in it"
    assert flags[6:] == [True] * 6
    assert phase_times.DEVICE_FAILURE == []


@pytest.mark.parametrize("at", range(3))
def test_a_device_that_refuses_leaves_the_hosts_times_and_says_so(device: Device, at: int) -> None:
    loop = Loop(device)
    for number in range(10):
        if number == 4:
            device.refuses = RuntimeError("CUDA error: an illegal memory access\nmore lines")
        elif number == 5 + at:
            device.refuses = None
        loop.step(0.001, ("forward", 0.002, 0.003))
    steps = loop.steps()
    assert len(steps) == 9
    assert all(one.forward == pytest.approx(0.002) for one in steps if not one.flags & ON_DEVICE)
    assert not any(one.flags & ON_DEVICE for one in steps[4:])
    told = "Phases are times of the host, not of the GPU: CUDA error: an illegal memory access"
    assert [told] == phase_times.DEVICE_FAILURE
    assert told in monitor.step_notices()


def test_a_step_with_a_whole_validation_in_it_is_timed_on_the_host(device: Device) -> None:
    loop, inner = Loop(device), Loop(device)
    loop.clock.ask()
    loop.clock.got(4)
    for _ in range(MOST_MARKS):
        inner.step(0.001, ("forward", 0.002, 0.001))
    made = len(device.events)
    for _ in range(MOST_MARKS):
        inner.step(0.001, ("forward", 0.002, 0.001))
    assert len(device.events) <= made + 8, "the outer step keeps no more events"
    loop.clock.ask()
    device.now = device.busy
    outer = loop.steps()
    assert len(outer) == 1
    assert not outer[0].flags & ON_DEVICE
    assert all(one.flags & ON_DEVICE for one in inner.steps()[:-1])


def test_two_loops_side_by_side_share_the_stamps(device: Device) -> None:
    first, second = Loop(device), Loop(device)
    for _ in range(8):
        first.clock.ask()
        device.now += 0.001
        first.clock.got(4)
        second.step(0.002, ("forward", 0.001, 0.010), after=0.010)
    for loop in (first, second):
        for one in loop.steps()[2:]:
            assert one.flags & ON_DEVICE
            assert one.forward == pytest.approx(0.011), "the launch, for which the device is idle, and the work"


def test_a_loop_that_was_left_keeps_no_stamps(device: Device) -> None:
    left, loop = Loop(device), Loop(device)
    left.clock.ask()
    left.clock.got(4)
    for _ in range(2 * MOST_MARKS):
        loop.step(0.001, ("forward", 0.002, 0.001))
    assert len(thread_phases().trails) == 1
    assert len(device.events) <= 2 * MOST_MARKS


@pytest.fixture
def model(device: Device) -> Iterator[torch.nn.Module]:
    """One on the stand-in's device, watched."""
    linear = torch.nn.Linear(4, 4, device="meta")
    thread_phases().on_device = False
    with watch(linear):
        yield linear


@pytest.mark.parametrize(
    ("send", "counts"),
    [
        (lambda one: one.to("meta"), True),
        (lambda one: one.to(torch.device("meta"), torch.float16, non_blocking=True), True),
        (lambda one: one.to(device="meta"), True),
        (lambda one: one.to(torch.empty(1, device="meta")), True),
        (lambda one: one.to(tensor=torch.empty(1, device="meta")), True),
        (lambda one: one.to(torch.float16), False),
        (lambda one: one.to("cpu"), False),
        (lambda one: one.to("meta").to("meta", torch.float16), True),
    ],
)
def test_a_tensor_s_way_to_the_device_is_a_copy(
    device: Device, model: torch.nn.Module, send: Callable[[Any], Any], counts: bool
) -> None:
    original = torch.Tensor.to
    model(torch.empty(1, 4, device="meta"))
    assert torch.Tensor.to is not original, "wrapped once a model is met on the device"
    before = thread_phases().spent[0]

    class Slow(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            device.now += 0.5
            return super().__torch_function__(*args, **kwargs)  # type: ignore[no-untyped-call]

    send(torch.ones(2, 2).as_subclass(Slow))
    assert (thread_phases().spent[0] - before >= 0.5) == counts
    assert thread_phases().idle


def test_inside_another_phase_a_copy_is_part_of_that(device: Device, model: torch.nn.Module) -> None:
    model(torch.empty(1, 4, device="meta"))
    before = thread_phases().spent[0]
    with phase("forward"):
        torch.ones(2).to("meta")
    assert thread_phases().spent[0] == before


def test_torch_has_its_functions_back_when_nothing_is_watched(device: Device) -> None:
    before = (torch.Tensor.to, torch.Tensor.cuda, torch.autograd.backward, "to" in vars(torch.Tensor))
    linear = torch.nn.Linear(4, 4, device="meta")
    found = watch(linear)
    linear(torch.empty(1, 4, device="meta"))
    assert torch.Tensor.to is not before[0]
    found.stop()
    assert before == (torch.Tensor.to, torch.Tensor.cuda, torch.autograd.backward, "to" in vars(torch.Tensor))


def test_on_the_host_there_is_no_copy_and_nothing_is_wrapped_for_it() -> None:
    original, linear = torch.Tensor.to, torch.nn.Linear(4, 4)
    with watch(linear):
        linear(torch.ones(1, 4).to(torch.float32)).sum().backward()
        assert torch.Tensor.to is original


def test_stamps_cost_little() -> None:
    """Beside what CUDA takes for them: 3 µs for a step of four phases is the bar; three times that here."""
    found = Device()
    phase_times.use_driver(found)
    thread_phases().on_device = True
    try:
        loop = Loop(found)
        spent = []
        for _ in range(5):
            began = time.thread_time()
            for _ in range(300):
                loop.clock.ask()
                loop.clock.got(1)
                for name in ("forward", "backward"):
                    with phase(name):
                        pass
            spent.append((time.thread_time() - began) / 300)
        print(f"{min(spent) * 1e6:.1f} µs a step")
        assert min(spent) < 200e-6
    finally:
        thread_phases().on_device = False
        phase_times.use_driver(None)
    assert math.isfinite(loop.meter.totals().forward_s)
