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


def test_who_cannot_renew_while_a_cell_runs_is_held_until_its_end_and_no_longer() -> None:
    clock = Clock()
    hub = Hub(clock)
    hub.subscribe("renews")
    hub.subscribe("held")
    hub.hold("held")
    hub.cell_started()
    clock.now += 100 * LEASE_S
    running = {client: hub.holds(client, FRAMES) for client in ("renews", "held")}
    hub.cell_ended()
    clock.now += LEASE_S - 1
    running["just after"] = hub.wanted(FRAMES)
    clock.now += 2
    running["later"] = hub.wanted(FRAMES)
    assert running == {"renews": False, "held": True, "just after": True, "later": False}


def test_where_no_hook_says_so_the_hub_asks_whether_a_cell_runs_and_never_pauses() -> None:
    clock = Clock()
    hub = Hub(clock)
    runs = [True]
    hub.ask_cells(lambda: runs[0])
    clock.now += IDLE_PAUSE_S * 2
    busy = [hub.cell_running]
    runs[0] = False
    busy.append(hub.cell_running)
    assert busy == [True, False]
    assert not hub.paused
