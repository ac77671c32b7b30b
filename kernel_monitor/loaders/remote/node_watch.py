"""Reads the load of the nodes that work: by a small process of its own on each. In the driver process."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from .node_worker import Place
from .pool import Pool

AGAIN = 30.0  # s, until a reader that ended is started again


class Load(NamedTuple):
    """The load of one node."""

    node: str  # Ray's id
    name: str  # of the host
    cores: tuple[int, ...]
    reading: dict[str, float]  # as `sample.node_sampler.NodeSampler.read` gives it


class NodeReader:
    """A Ray actor, which takes no core."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        from kernel_monitor.sample.node_sampler import NodeSampler

        self._sampler = NodeSampler()

    def read(self) -> tuple[str, tuple[int, ...], dict[str, float]]:
        """The host's name, its cores, what has been measured since the last call."""
        import platform

        return platform.node(), self._sampler.cores, self._sampler.read()


class NodeWatch:
    """A reader on every node with workers, but the one that trains: that has its own rows."""

    def __init__(self, ray: Any, place: Place) -> None:
        self._ray = ray
        self._place = place
        # By value, as the workers.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._actor = ray.remote(NodeReader)
        self._readers: dict[str, Any] = {}
        self._asked: dict[Any, str] = {}  # by the reference of a call under way: the node
        self._not_before: dict[str, float] = {}

    def look(self, pool: Pool) -> list[Load]:
        """What has been read since the last look; to be called every second or so, and never waits."""
        wanted = {worker.node for worker in pool.ready if not pool.nodes[worker.node].is_ours}
        for node in self._readers.keys() - wanted:
            self._end(node)
        for node in wanted - self._readers.keys():
            if time.monotonic() >= self._not_before.get(node, 0.0):
                self._start(node)
        found = self._read()
        for node in self._readers.keys() - set(self._asked.values()):
            self._asked[self._readers[node].read.remote()] = node
        return found

    def _read(self) -> list[Load]:
        asked = list(self._asked)
        done, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0) if asked else ([], [])
        found = []
        for reference in done:
            node = self._asked.pop(reference)
            try:
                found.append(Load(node, *self._ray.get(reference)))
            except Exception:  # noqa: BLE001 - Ray's: the reader or its node is gone, which `Pool` reports
                self._end(node)
                self._not_before[node] = time.monotonic() + AGAIN
        return found

    def _start(self, node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = self._actor.options(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)
        self._readers[node] = options.remote(self._place.paths)

    def _end(self, node: str) -> None:
        reader = self._readers.pop(node, None)
        if reader is not None:
            self._ray.kill(reader, no_restart=True)
