"""Steps go from one request to the next, and their phases are those of the thread that steps."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import threading
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator

import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.steps import phase, step, watch_loader
from kernel_monitor.steps.measured_step import NO_GRADIENTS, WARM_UP, Step
from kernel_monitor.steps.phase_times import thread_phases
from kernel_monitor.steps.step_meter import STEPS_KEPT, WARM_UP_STEPS, Meter, StepClock
from kernel_monitor.steps.watched_loader import live
from tests.unit.checks import threads
from tests.unit.watched import source, steps


@pytest.fixture(autouse=True)
def thread() -> Iterator[None]:
    """Each test has a book of its own: that of a thread of its own would be the same."""
    book = thread_phases()
    used = book.used
    book.used = False
    yield
    book.used = used
    assert book.idle


def test_steps_go_from_request_to_request() -> None:
    meter = Meter("loader-1")
    clock = StepClock(meter)
    clock.ask(10.0)
    clock.got(4, 10.5)
    assert meter.totals()[:4] == (4, 0, 0.0, 0.0)
    clock.ask(12.0)
    clock.got(4, 12.25)
    clock.ask(13.0)
    clock.stop()
    assert meter.totals() == (8, 2, 0.75, 3.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2)
    clock.ask(20.0)
    assert meter.totals().steps == 2


def test_the_first_steps_of_a_source_and_of_each_iteration_are_warm_up() -> None:
    meter = Meter()
    for epoch in range(2):
        clock = StepClock(meter)
        for number in range(6):
            clock.ask(10.0 * epoch + number)
            clock.got(1, 10.0 * epoch + number + 0.5, epoch=epoch, batch=number)
        clock.stop()
    found = [(one.epoch, one.batch) for one in meter.steps_since(0)[0] if one.flags & WARM_UP]
    assert found == [(0, number) for number in range(WARM_UP_STEPS)] + [(1, 0)]


def test_a_step_without_gradients_is_told_from_one_that_trains() -> None:
    import torch

    data = watch_loader([1] * 6, name="evaluated")
    with torch.no_grad():
        list(data)
    with torch.inference_mode():
        list(data)
    list(data)
    begun, leave = threading.Event(), threading.Event()

    def evaluate() -> None:
        with torch.no_grad():
            list(data)
            begun.set()
            leave.wait()

    with threads(evaluate):
        begun.wait()
        list(data)  # what another thread has turned off is on here
        leave.set()
    flags = [bool(one.flags & NO_GRADIENTS) for one in steps("evaluated")]
    assert flags == [True] * 12 + [False] * 6 + [True] * 6 + [False] * 6


def test_without_torch_no_step_is_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    data = watch_loader([1] * 6, name="plain")
    with torch.no_grad():
        monkeypatch.delitem(sys.modules, "torch")
        list(data)
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # as while another thread imports it
        list(data)
    assert {one.flags & NO_GRADIENTS for one in steps("plain")} == {0}


def test_without_phases_nothing_is_said_of_them() -> None:
    watched = watch_loader(range(5), name="bare")
    for _ in watched:
        pass
    assert len(steps("bare")) == 5
    assert all(math.isnan(value) for one in steps("bare") for value in one[6:10])
    assert source("bare").meter.totals().phased == 0


def test_a_phase_that_was_seen_once_is_measured_from_then_on() -> None:
    with phase("copy"):
        pass  # of no step, but the book is open from here on
    watched = watch_loader(range(5), name="sometimes")
    for number in watched:
        if number == 2:
            with phase("optimizer"):
                pass
    found = [one.optimizer for one in steps("sometimes")]
    assert [math.isnan(value) for value in found] == [True, True, False, False, False]
    assert found[3:] == [0.0, 0.0]
    assert all(math.isnan(one.copy) for one in steps("sometimes"))
    assert watched is not None


def test_phases_inside_phases_count_once_and_never_exceed_the_step() -> None:
    def burn(rounds: int) -> int:
        return sum(range(rounds))

    watched = watch_loader(range(20), name="nested")
    for _ in watched:
        with phase("optimizer"):
            burn(20_000)
            with phase("forward"):
                burn(40_000)
                with phase("backward"):
                    burn(20_000)
            with phase("forward"):
                burn(10_000)
    for one in steps("nested")[1:]:
        parts = (one.wait, one.forward, one.backward, one.optimizer)
        assert 0.8 * one.step < sum(parts) <= one.step + 1e-9
    found = steps("nested")
    assert statistics.median(one.forward for one in found) > 1.5 * statistics.median(one.backward for one in found)


def test_what_the_loader_itself_does_on_this_thread_is_its_wait() -> None:
    def batches() -> Iterator[int]:
        for number in range(6):
            with phase("forward"):
                sum(range(50_000))
            yield number

    watched = watch_loader(batches(), name="own")
    for _ in watched:
        with phase("forward"):
            pass
    for one in steps("own")[1:]:
        assert one.wait + one.forward <= one.step + 1e-9
        assert one.forward < one.wait


def test_a_phase_around_the_whole_loop_is_cut_at_its_steps() -> None:
    watched = watch_loader(range(6), name="around")
    with phase("forward"):
        for _ in watched:
            sum(range(20_000))
    for one in steps("around"):
        assert 0 < one.forward <= one.step - one.wait + 1e-9
        assert one.forward == pytest.approx(one.step - one.wait, abs=1e-3)


def test_loops_side_by_side_and_inside_each_other_have_the_phases_that_ran_in_their_steps() -> None:
    first, second = watch_loader(range(8), name="first"), watch_loader(range(8), name="second")
    for _ in zip(first, second, strict=True):
        with phase("forward"):
            sum(range(20_000))
    for one, other in zip(steps("first")[1:], steps("second")[1:], strict=False):
        assert one.forward == pytest.approx(other.forward, abs=1e-3)
        assert one.wait + one.forward <= one.step + 1e-9
    training, kept = watch_loader(range(4), name="training"), []
    for _ in training:
        validation = watch_loader(range(5), name="validation")
        kept.append(validation)
        for _ in validation:
            with phase("forward"):
                sum(range(20_000))
    for one in steps("training")[1:]:
        assert one.wait + one.forward <= one.step + 1e-9
    inner = [one for loader in live() if loader.name == "validation" for one in loader.meter.steps_since(0)[0]]
    assert sum(one.forward for one in inner[1:]) <= sum(one.step for one in steps("training"))


def test_another_threads_phases_are_not_this_loops() -> None:
    watched, stop = watch_loader(range(6), name="mine"), threading.Event()

    def elsewhere() -> None:
        while not stop.is_set():
            with phase("backward"):
                sum(range(1000))

    with threads(elsewhere):
        for _ in watched:
            with phase("forward"):
                sum(range(1000))
        stop.set()
    assert all(math.isnan(one.backward) for one in steps("mine"))
    assert all(one.forward > 0 for one in steps("mine")[1:])


def test_a_step_by_hand_measures_its_wait_only_when_it_says_so() -> None:
    for told in (False, True, True, True, True):
        with step("told by hand") as one, phase("forward"):
            if told:
                one.got(32)
    with pytest.raises(ValueError, match="the loop's own"), step("told by hand"):
        raise ValueError("the loop's own")
    found = steps("told by hand")
    assert [one.batch for one in found] == [0, 1, 2, 3, 4]
    assert [one.images for one in found] == [0, 32, 32, 32, 32]
    assert [math.isnan(one.wait) for one in found] == [True, False, False, False, False]
    totals, state = source("told by hand").meter.totals(), source("told by hand").state()
    assert (totals.steps, totals.waited, totals.wait_s) == pytest.approx((5, 4, sum(one.wait for one in found[1:])))
    assert math.isfinite(totals.phased_wait_s)
    assert (state["batch"], state["samples"], state["status"]) == (5, 128, "watched, batch 5")


def test_misuse_by_hand_is_named() -> None:
    with pytest.raises(MonitorError, match="copy, forward, backward, optimizer"):
        phase("loss")
    with pytest.raises(MonitorError, match="inside another one"), step("twice"), step("twice"):
        pass
    with pytest.raises(MonitorError, match="inside the block"):
        step("none").got(1)
    with step("twice"), step("inner"):
        pass
    assert len(steps("twice")) == 1


def test_only_the_newest_steps_are_kept() -> None:
    meter = Meter()
    for number in range(STEPS_KEPT + 10):
        meter.step(Step(float(number), 0, number, 4, 0.25, 1.0))
    found, newest = meter.steps_since(0)
    assert newest == STEPS_KEPT + 10
    assert [one.batch for one in found] == list(range(newest - len(found), newest))
    assert len(found) >= STEPS_KEPT - 1
    assert meter.steps_since(newest) == ([], newest)


def test_ten_thousand_steps_leave_nothing_behind() -> None:
    def loop(count: int) -> None:
        for _ in watch_loader(range(count), name="long"):
            with phase("forward"), phase("backward"):
                pass
        for number in range(count):
            with step("long by hand") as one:
                one.got(number % 7)

    tracemalloc.start()
    try:
        loop(STEPS_KEPT + 10)  # the rings are full
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        loop(10_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 64_000, f"{grown:,} bytes stayed"


def test_sources_are_gone_with_what_they_watch() -> None:
    watched = watch_loader([1, 2], name="gone soon")
    number = int(source("gone soon").id.removeprefix("loader-"))
    del watched
    gc.collect()
    assert not [one for one in live() if one.name == "gone soon"]
    again = watch_loader([1, 2])
    assert int(next(one.id for one in live() if one.name == one.id).removeprefix("loader-")) > number
    assert again is not None


def test_a_loop_that_is_interrupted_between_two_hooks_does_not_stay_in_its_phase() -> None:
    def optimizer_step() -> None:
        thread_phases().enter(3, optimizer_step.__code__)
        raise KeyboardInterrupt

    watched = watch_loader(range(6), name="interrupted")
    for number in watched:
        if number == 2:
            with pytest.raises(KeyboardInterrupt):
                optimizer_step()
        sum(range(20_000))
    found = steps("interrupted")
    assert found[4].optimizer == found[5].optimizer == 0.0
    assert thread_phases().idle


def test_a_reader_never_sees_a_step_in_another_ones_place() -> None:
    meter, stop = Meter(), threading.Event()

    def loop() -> None:
        number = 0
        while not stop.is_set():
            meter.step(Step(float(number), 0, number, 4, 0.25, 1.0))
            number += 1

    with threads(loop):
        try:
            known, seen = 0, 0
            while seen < 60_000:
                found, newest = meter.steps_since(known)
                numbers = [one.batch for one in found]
                assert numbers == list(range(newest - len(numbers), newest))
                known, seen = newest, seen + len(numbers)
        finally:
            stop.set()


def test_a_step_costs_the_loop_almost_nothing() -> None:
    """The bar is 10 µs for a step without phases and 20 µs for one with four; three times that here."""

    def cost(call: Callable[[], None]) -> float:
        found = []
        for _ in range(5):
            begun = time.thread_time()
            for _ in range(5000):
                call()
            found.append((time.thread_time() - begun) / 5000)
        return min(found)

    clock = StepClock(Meter())

    def bare() -> None:
        clock.ask()
        clock.got(4)

    def phased() -> None:
        clock.ask()
        clock.got(4)
        for one in parts:
            with one:
                pass

    parts = [phase(name) for name in ("copy", "forward", "backward", "optimizer")]
    plain, full = cost(bare), cost(phased)
    print(f"{plain * 1e6:.1f} µs a step, {full * 1e6:.1f} µs with four phases")
    assert plain < 30e-6
    assert full < 60e-6
