"""What other machines' batches are limited by on their way: counted as they come."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_monitor.node_sources import RayNode
from kernel_monitor.ray.nodes import PassedOn

from .conftest import Make, RunningCluster, until


def node(address: str) -> RayNode:
    return RayNode("a", address, 2, 0, True, None, None)


def passed(batches: int, cpu_s: float) -> PassedOn:
    """So many batches of 32 images of 600 kB, for which the driver process took `cpu_s`."""
    found = PassedOn()
    found.told(3.0)  # what it took to start
    for _ in range(batches):
        found.received(32, 32 * 600_000)
    found.told(3.0 + cpu_s)
    return found


def speeds(**megabits: int) -> Callable[[], Any]:
    return lambda: {name: SimpleNamespace(isup=speed >= 0, speed=abs(speed)) for name, speed in megabits.items()}


def test_the_driver_process_and_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_if_stats", speeds(lo=65_536, eth0=10_000, eth1=-100_000))
    found = passed(100, 0.5).limits([node("10.0.0.7")])
    assert found is not None
    assert found["driver"] == pytest.approx(6400)
    assert found["link"] == pytest.approx(10e9 / 8 / 600_000)


def test_no_link_on_one_machine_and_none_whose_speed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_if_stats", speeds(lo=65_536, eth0=0))
    for address in ("127.0.0.1", "10.0.0.7"):
        found = passed(100, 0.5).limits([node(address)])
        assert found is not None
        assert found["link"] is None


def test_nothing_is_said_of_few_batches() -> None:
    assert passed(10, 0.1).limits([]) is None
    assert PassedOn().limits([]) is None


def test_a_loader_that_runs_says_its_own(quick: RunningCluster, make: Make) -> None:
    loader = make()
    loader.switch("ray")

    def known() -> bool:
        list(loader)
        return "remote" in loader.state()

    until(known, loader)
    found = loader.state()["remote"]
    assert found is not None
    assert 30 < found["driver"] < 1e6
    assert found["link"] is None
