"""Watches the cluster in the driver process: the load of its nodes, as rows, and whether it is still there."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .node_worker import Place
from .pool import Dispatch, Pool

# ---- Reads the load of the nodes that work: by a small process of its own on each. In the driver process.

AGAIN = 30.0  # s, until a reader that ended is started again


class Load(NamedTuple):
    """The load of one node."""

    node: str  # Ray's id
    name: str  # of the host
    cores: tuple[int, ...]
    reading: dict[str, float]  # as `sample.node_sampler.NodeSampler.read` gives it


class _NodeReader:
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
        self._actor = ray.remote(_NodeReader)
        self._readers: dict[str, Any] = {}
        self._asked: dict[Any, str] = {}  # by the reference of a call under way: the node
        self._not_before: dict[str, float] = {}

    def look(self, pool: Pool) -> list[Load]:
        """Return what has been read since the last look; to be called every second or so, and never waits."""
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


# ---- Notices that the cluster is gone while batches are awaited. A thread in the driver process.

LOOKS = 0.4  # s between two looks
_ANSWERS_WITHIN = 0.8  # s, for a connection
MISSED = 3  # looks, one after the other, in which no batch came and one of the two could not be reached
HEAD = "the cluster's head"
HERE = "Ray on this machine"

_Address = tuple[str, int]


class ClusterWatch(threading.Thread):
    """`gone` is called, on this thread, with the cause. `ray` is the module, joined to a cluster."""

    def __init__(self, ray: Any, dispatch: Dispatch, gone: Callable[[str], None]) -> None:
        super().__init__(name="cluster watch", daemon=True)
        self._dispatch = dispatch
        self._gone = gone
        self._addresses = _addresses(ray)

    def run(self) -> None:
        """Look, until the cluster is gone."""
        silent, missed, answered = "", 0, 0
        while missed < MISSED:
            time.sleep(LOOKS)
            silent = next((who for who, address in self._addresses.items() if not self._reached(address, answered)), "")
            missed = missed + 1 if silent else 0
            answered = self._dispatch.answered
        self._gone(f"{silent} does not answer; switch to ray again once it does")

    def _reached(self, address: _Address, answered: int) -> bool:
        """Return whether something listens there.

        Not asked where no batch is awaited, or some came since the last look.
        """
        if not self._dispatch.awaited or self._dispatch.answered != answered:
            return True
        try:
            socket.create_connection(address, timeout=_ANSWERS_WITHIN).close()
        except OSError:
            return False
        return True


def _addresses(ray: Any) -> dict[str, _Address]:
    """The addresses of the head, and of the process that connects this machine with the cluster."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    ours = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return {HEAD: (host, int(port)), HERE: (ours["NodeManagerAddress"], int(ours["NodeManagerPort"]))}
