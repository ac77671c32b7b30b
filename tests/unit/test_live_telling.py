"""What the recorder is told: values and steps twice a second, states when they changed, nothing twice."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from kernel_monitor.live.telling import MOST_STEPS_A_SECOND, Teller
from kernel_monitor.loaders.meter import STEPS_KEPT, Meter, StepClock


class Loader:
    """What is asked of a loader here."""

    def __init__(self, name: str = "loader-1") -> None:
        self.id = name
        self.meter = Meter()
        self.worker_pids: list[int] = []

    def step(self, number: int) -> None:
        self.meter.step((100.0 + number, 0, number, 4, 0.25, 1.0))


class Sampler:
    """Collects what is sent, and is the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sent: list[dict[str, Any]] = []
        self.teller = Teller(self.take, lambda monotonic: monotonic - 100.0, clock=lambda: self.now)
        self.teller.recording = True

    def take(self, message: dict[str, Any]) -> None:
        self.sent.append(json.loads(json.dumps(message)))

    def row(self, loader: Loader, at: float, states: list[dict[str, Any]] | None = None) -> None:
        self.now += 0.1
        self.teller.row(at, {f"loader/{loader.id}/images": at}, states or [], cast("Any", [loader]))

    def of(self, do: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["do"] == do]


def test_values_go_in_rows_every_half_second() -> None:
    sampler, loader = Sampler(), Loader()
    for tick in range(1, 13):
        sampler.row(loader, tick / 8)
    rows = [row for message in sampler.of("values") for row in message["rows"]]
    assert rows == [[tick / 8, {"loader/loader-1/images": tick / 8}] for tick in range(1, len(rows) + 1)]
    assert len(sampler.of("values")) == 2
    assert len(rows) >= 10


def test_every_step_is_told_once_in_session_time() -> None:
    sampler, loader = Sampler(), Loader()
    for number in range(40):
        loader.step(number)
        sampler.row(loader, number / 10)
    sampler.teller.goodbye("stopped", cast("Any", [loader]), [])
    rows = [row for message in sampler.of("steps") for row in message["rows"]]
    assert rows == [[float(number), 0, number, 4, 0.25, 1.0] for number in range(40)]
    assert {message["dropped"] for message in sampler.of("steps")} == {0}
    assert sampler.sent[-1] == {"do": "goodbye", "reason": "stopped"}


def test_of_more_than_two_hundred_steps_a_second_the_others_are_counted() -> None:
    sampler, loader = Sampler(), Loader()
    for tick in range(20):
        for number in range(100):
            loader.step(tick * 100 + number)
        sampler.row(loader, tick / 10)
    told = sampler.of("steps")
    rows = [row for message in told for row in message["rows"]]
    assert len(rows) + sum(message["dropped"] for message in told) == round(rows[-1][0] + 100) // 100 * 100
    assert len(rows) <= 1.1 * MOST_STEPS_A_SECOND * 2.0
    assert len(rows) >= 0.7 * MOST_STEPS_A_SECOND * 1.5
    gaps = {round(b[0] - a[0]) for a, b in itertools.pairwise(rows)}
    assert max(gaps) <= 8, "those told are spread evenly"


def test_states_go_at_most_once_a_second_and_only_when_they_changed() -> None:
    sampler, loader = Sampler(), Loader()
    for tick in range(30):
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": min(tick, 14)}])
    told = [message["loaders"][0]["batch"] for message in sampler.of("loaders")]
    assert told == sorted(set(told))
    assert 2 <= len(told) <= 3
    assert told[-1] == 14


def test_workers_are_told_when_they_change_even_without_a_recording() -> None:
    sampler, loader = Sampler(), Loader()
    sampler.teller.recording = False
    for tick in range(50):
        loader.worker_pids = [] if tick < 15 else [12, 11] if tick < 35 else [13]
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": tick}])
    assert [message["workers"] for message in sampler.sent] == [[11, 12], [13]]


def test_a_new_sampler_is_told_everything_again() -> None:
    sampler, loader = Sampler(), Loader()
    loader.worker_pids = [7]
    state = [{"id": "loader-1", "batch": 3}]
    sampler.teller.greet({"python": "3.12"})
    sampler.row(loader, 0.1, state)
    sampler.teller.greet({"python": "3.12"})
    sampler.row(loader, 0.2, state)
    dos = [message["do"] for message in sampler.sent]
    assert dos == ["facts", "roles", "loaders", "facts", "roles", "loaders"]


def test_nothing_but_roles_is_told_to_a_sampler_that_does_not_record() -> None:
    sampler, loader = Sampler(), Loader()
    sampler.teller.recording = False
    sampler.teller.event({"kind": "switch", "time": 1.0})
    for tick in range(30):
        loader.step(tick)
        sampler.row(loader, tick / 10, [{"id": "loader-1", "batch": tick}])
    assert sampler.sent == []
    sampler.teller.recording = True
    loader.step(30)
    for tick in range(6):
        sampler.row(loader, 3 + tick / 10)
    assert [row[2] for message in sampler.of("steps") for row in message["rows"]] == [30], "only steps since then"


def test_the_steps_of_a_loop_carry_their_batch() -> None:
    meter = Meter()
    clock = StepClock(meter)
    clock.ask(10.0)
    clock.got(4, 10.5, epoch=2, batch=7)
    clock.ask(12.0)
    clock.got(3, 12.25, epoch=2, batch=8)
    clock.ask(13.0)
    assert meter.steps_since(0) == ([(12.0, 2, 7, 4, 0.5, 2.0), (13.0, 2, 8, 3, 0.25, 1.0)], 2)
    assert meter.steps_since(1) == ([(13.0, 2, 8, 3, 0.25, 1.0)], 2)
    assert meter.steps_since(2) == ([], 2)


def test_only_the_newest_steps_are_kept() -> None:
    loader = Loader()
    for number in range(STEPS_KEPT + 10):
        loader.step(number)
    steps, newest = loader.meter.steps_since(0)
    assert newest == STEPS_KEPT + 10
    assert steps[-1][2] == newest - 1
    assert [step[2] for step in steps] == list(range(newest - len(steps), newest))
    assert len(steps) >= STEPS_KEPT - 1


def test_a_reader_never_sees_a_step_in_another_ones_place() -> None:
    loader, stop = Loader(), threading.Event()

    def loop() -> None:
        number = 0
        while not stop.is_set():
            loader.step(number)
            number += 1

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        known, seen = 0, 0
        while seen < 60_000:
            steps, newest = loader.meter.steps_since(known)
            numbers = [step[2] for step in steps]
            assert numbers == list(range(newest - len(numbers), newest))
            known, seen = newest, seen + len(numbers)
    finally:
        stop.set()
        thread.join()


def test_keeping_a_step_costs_the_loop_almost_nothing() -> None:
    """The bar is 0.3 µs a step beside the sums that were there before; three times that here."""

    def cost(call: Callable[[], None]) -> float:
        begun = time.thread_time()
        for _ in range(50_000):
            call()
        return (time.thread_time() - begun) / 50_000

    meter, step = Meter(), (1.0, 0, 0, 4, 0.25, 1.0)
    sums = partial(meter.add, steps=1, wait_s=0.25, step_s=1.0)
    extra = min(cost(partial(meter.step, step)) for _ in range(5)) - min(cost(sums) for _ in range(5))
    print(f"keeping a step: {extra * 1e6:.2f} µs")
    assert extra < 0.9e-6
