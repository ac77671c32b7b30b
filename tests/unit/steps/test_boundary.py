"""Calls between two steps: on the loop's own thread, outside of every step, and never the loop's problem."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kernel_monitor.steps import boundary, step, watch_loader
from kernel_monitor.steps.boundary import BoundaryInfo, call_between_steps
from kernel_monitor.steps.measured_step import PROFILED
from tests.unit.watched import source, steps


def identity(name: str) -> str:
    return source(name).id


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert not boundary.waiting


def test_a_call_is_made_at_each_boundary_until_it_has_enough() -> None:
    calls: list[tuple[str, int, int]] = []

    def call(info: BoundaryInfo) -> bool:
        calls.append((info.loader_id, info.steps, threading.get_ident()))
        if len(calls) < 4:
            info.flag(PROFILED)
        return len(calls) < 4

    watched = watch_loader(range(9), name="called")
    for number in watched:
        if number == 2:
            call_between_steps(identity("called"), call)
    key, here = identity("called"), threading.get_ident()
    assert calls == [(key, 3, here), (key, 4, here), (key, 5, here), (key, 6, here)]
    assert [one.batch for one in steps("called") if one.flags & PROFILED] == [3, 4, 5]


def test_its_time_is_in_no_step_of_any_loop_on_this_thread() -> None:
    def call(info: BoundaryInfo) -> bool:
        time.sleep(0.2)
        return False

    first, second = watch_loader(range(6), name="first"), watch_loader(range(6), name="second")
    for number, _ in zip(first, second, strict=True):
        if number == 3:
            call_between_steps(identity("first"), call)
    began = time.monotonic()
    for name in ("first", "second"):
        assert len(steps(name)) >= 5
        assert sum(one.step for one in steps(name)) < 0.15
        assert max(one.wait for one in steps(name)) < 0.15
    assert time.monotonic() - began < 1


def test_another_loader_s_boundary_is_not_meant_and_none_means_whichever_steps() -> None:
    seen: list[str] = []

    def call(info: BoundaryInfo) -> bool:
        seen.append(info.loader_id)
        return False

    kept = [watch_loader(range(3), name="a"), watch_loader(range(3), name="b")]
    call_between_steps(identity("b"), call)
    list(kept[0])
    assert seen == []
    list(kept[1])
    assert seen == [identity("b")]
    call_between_steps(None, call)
    with step("by hand"):
        pass
    assert seen[1:] == [identity("by hand")]


def test_what_it_raises_ends_it_and_is_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def call(info: BoundaryInfo) -> bool:
        raise RuntimeError("no profiler here")

    watched = watch_loader(range(4), name="goes on")
    call_between_steps(None, call)
    assert list(watched) == [0, 1, 2, 3]
    assert [(record.levelname, str(record.exc_info[1])) for record in caplog.records if record.exc_info] == [
        ("ERROR", "no profiler here")
    ]
    assert not boundary.waiting


def test_an_interrupt_in_a_call_reaches_the_loop() -> None:
    def call(info: BoundaryInfo) -> bool:
        raise KeyboardInterrupt

    watched = watch_loader(range(4), name="stopped")
    iterator = iter(watched)
    next(iterator)
    next(iterator)
    call_between_steps(None, call)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert next(iterator) == 2
    assert [one.batch for one in steps("stopped")] == [0, 1], "the step that ended is counted once"


def test_it_can_be_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    def call(info: BoundaryInfo) -> bool:
        raise AssertionError

    end = call_between_steps(None, call)
    end()
    end()
    list(watch_loader(range(3)))
    assert caplog.records == []
