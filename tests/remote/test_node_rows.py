"""The nodes' load among the monitor's rows, as the engine `ray` reports it."""

from __future__ import annotations

import math
import threading

from kernel_monitor import node_sources

from .conftest import Make, RunningCluster, until


def _shown() -> dict[str, float]:
    return {name: value for source in node_sources.live() for name, value in source.values().items()}


def test_cores_network_and_batches_of_the_nodes_that_work(quick: RunningCluster, make: Make) -> None:
    loader = make(num_workers=2)
    ended, peak = threading.Event(), dict[str, float]()

    def train() -> None:
        while not ended.is_set():
            for _ in loader:
                if ended.is_set():
                    break

    thread = threading.Thread(target=train)
    thread.start()
    loader.switch("ray")
    try:

        def complete() -> bool:
            for name, value in _shown().items():
                peak[name] = max(value, peak.get(name, 0.0))
            works = {name.split("/")[1] for name, value in peak.items() if name.endswith("/batches") and value > 0}
            measured = {name.split("/")[1] for name, value in peak.items() if name.endswith("/busy") and value > 0}
            return len(works & measured) == 2

        until(complete)
    finally:
        ended.set()
        thread.join()
    every = [node for source in node_sources.live() for node in source.nodes()]
    shown = [node for node in every if peak.get(f"node/{node.id}/batches", 0.0) > 0]
    assert len(shown) == 2
    assert len({node.name for node in shown}) == 2
    for node in shown:
        assert node.alive
        assert node.cores
        busy = [peak[f"node/{node.id}/cpu/{core}/busy"] for core in node.cores]
        assert all(0 <= value <= 100 for value in busy)
        assert max(busy) > 0
        assert math.isfinite(peak[f"node/{node.id}/network/received"])
    assert sum(node.workers > 0 for node in loader.nodes) == 2
