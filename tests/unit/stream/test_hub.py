"""Leases and the pause: a stream that nobody shows must stop, and an idle kernel must be left alone."""

from __future__ import annotations

from kernel_monitor.stream.hub import FRAMES, IDLE_PAUSE_S, LEASE_S, Hub


class Clock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_ends_unless_renewed() -> None:
    clock = Clock()
    hub = Hub(clock)
    watched = [hub.wanted(FRAMES)]
    hub.subscribe("a")
    hub.subscribe("b")
    clock.now += LEASE_S - 1
    hub.subscribe("b")
    clock.now += 2
    watched.append(hub.wanted(FRAMES))
    hub.unsubscribe("b")
    watched.append(hub.wanted(FRAMES))
    assert watched == [False, True, False]
    assert hub.ever_subscribed


def test_ten_minutes_without_a_cell_pause_and_a_touch_resumes() -> None:
    clock = Clock()
    hub = Hub(clock)
    hub.cell_started()
    clock.now += IDLE_PAUSE_S * 3
    paused = {"while a cell runs": hub.paused}
    hub.cell_ended()
    clock.now += IDLE_PAUSE_S + 1
    paused["later"] = hub.paused
    hub.subscribe("a")
    paused["after a renewal"] = hub.paused
    hub.subscribe("a", touch=True)
    paused["after a touch"] = hub.paused
    assert paused == {"while a cell runs": False, "later": True, "after a renewal": True, "after a touch": False}


def test_the_cell_that_loads_the_extension_may_end_unseen() -> None:
    hub = Hub(Clock())
    hub.cell_ended()
    hub.cell_started()
    hub.cell_started()
    hub.cell_ended()
    assert not hub.paused
