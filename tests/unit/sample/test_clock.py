"""Session time: what the clock says when the machine sleeps, and what it does not notice."""

from __future__ import annotations

import time

import pytest

from kernel_monitor.sample.clock import SessionClock, boottime


class Clocks:
    """A machine's two clocks: the second goes on while it sleeps."""

    def __init__(self, monotonic: float = 5000.0, asleep: float = 9000.0) -> None:
        self.now = monotonic
        self.awake_and_asleep = asleep

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.awake_and_asleep += seconds

    def sleep(self, seconds: float) -> None:
        self.awake_and_asleep += seconds

    def session(self) -> SessionClock:
        return SessionClock(self.now, 1.79e9, monotonic=lambda: self.now, asleep=lambda: self.awake_and_asleep)


def test_session_time_is_monotonic_time_while_nothing_sleeps() -> None:
    clocks = Clocks()
    clock = clocks.session()
    clocks.work(12.5)
    assert clock.time(clocks.now) == pytest.approx(12.5)
    assert clock.time(clocks.now - 2.5) == pytest.approx(10.0)
    assert clock.wall(clocks.now) == pytest.approx(1.79e9 + 12.5)
    assert clock.suspended == 0.0


def test_a_sleep_is_a_gap_and_what_was_before_it_stays_there() -> None:
    clocks = Clocks()
    clock = clocks.session()
    clocks.work(10.0)
    before = clocks.now
    assert clock.time(before) == pytest.approx(10.0)
    clocks.sleep(3600.0)
    clocks.work(0.1)
    assert clock.suspended == pytest.approx(3600.0)
    assert clock.time(clocks.now) == pytest.approx(3610.1)
    assert clock.time(before) == pytest.approx(10.0)
    clocks.work(5.0)
    middle = clocks.now
    assert clock.time(middle) == pytest.approx(3615.1)
    clocks.sleep(7.0)
    clocks.work(1.0)
    assert clock.time(clocks.now) == pytest.approx(3623.1)
    assert clock.time(middle) == pytest.approx(3615.1)
    assert clock.wall(clocks.now) == pytest.approx(1.79e9 + 3623.1)


def test_a_clock_made_later_is_given_the_sleeps_before_it() -> None:
    clocks = Clocks()
    first = clocks.session()
    clocks.work(10.0)
    clocks.sleep(100.0)
    clocks.work(1.0)
    later = SessionClock(
        first.zero - first.suspended, first.origin, monotonic=lambda: clocks.now, asleep=lambda: clocks.awake_and_asleep
    )
    clocks.work(1.0)
    clocks.sleep(50.0)
    clocks.work(1.0)
    assert later.time(clocks.now) == pytest.approx(first.time(clocks.now)) == pytest.approx(163.0)


def test_two_readings_that_are_not_at_one_moment_are_no_sleep() -> None:
    clocks = Clocks()
    clock = clocks.session()
    for jitter in (1e-4, -1e-4, 0.02, 0.0):
        clocks.work(0.1)
        clocks.awake_and_asleep += jitter
        assert clock.suspended == 0.0


def test_steps_of_the_wall_clock_do_not_bend_the_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SessionClock(time.monotonic(), time.time())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)
    assert clock.time(time.monotonic()) < 60.0
    assert clock.wall(time.monotonic()) == pytest.approx(now, abs=60.0)


def test_this_machines_clocks_go_at_one_pace() -> None:
    before = boottime() - time.monotonic()
    time.sleep(0.2)
    assert boottime() - time.monotonic() == pytest.approx(before, abs=0.01)
    clock = SessionClock(time.monotonic(), time.time())
    assert 0 <= clock.time(time.monotonic()) < 1.0
