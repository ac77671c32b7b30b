"""Other machines ("nodes") that work for the loops of this process: who reports them, and what they are called.

A loader's part that works on other machines registers a *source*; the monitor asks every live source for its nodes and
their newest values, and shows them. `NodeTable` is a source for those who get readings of
`sample.node_sampler.NodeSampler` from the nodes. Imports neither torch nor numpy.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .os_process import in_forked_children

PARTS = (
    ("network/received", "B/s"),
    ("network/sent", "B/s"),
    ("memory", "B"),
    ("batches", "batches/s"),
    ("busy", "%"),  # the mean of its cores, by the monitor
)
"""The series of every node beside those of its cores: the part of the name after `node/<id>/`, and the unit."""
GPU_PARTS = (("utilisation", "%"), ("clock", "MHz"), ("memory_used", "B"))
"""The series of each GPU of a node: the part of the name after `node/<id>/gpu/<k>/`, and the unit."""
STALE_S = 5.0  # how long a reading of a `NodeTable` holds, if the table is not given another time


@dataclass(frozen=True)
class Node:
    """Another machine."""

    id: str  # as `node_id` gives it: the `<id>` of `node/<id>/…`, without a slash
    name: str  # as live pages show it
    cores: tuple[int, ...] = ()  # the numbers of its logical cores
    alive: bool = True  # whether it works, or could
    reason: str | None = None  # why it is not alive, in words
    gpus: tuple[str, ...] = ()  # the products' names of its GPUs; the place is the `<k>` of `node/<id>/gpu/<k>/…`
    folded: bool = False  # whether pages show it in one row, the mean of its cores


class NodeSource(Protocol):
    """A source of readings of nodes; an object of any class that supports weak references.

    Both methods are called often, on threads of the monitor: they return at once and what they know already. An
    exception is shown as the reason why the source's nodes have no values.
    """

    def nodes(self) -> Sequence[Node]:
        """The nodes, dead ones with the reason; one that is left out counts as gone."""
        ...

    def values(self) -> Mapping[str, float]:
        """The newest values by the names of `node_series`; what is not known is left out.

        Called once for every row of the monitor, by one thread: `batches` may be counted since the last call.
        """
        ...


_lock = threading.Lock()
_live: weakref.WeakValueDictionary[int, NodeSource] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_ids: dict[str, str] = {}
_pseudonyms: dict[str, str] = {}


def register(source: NodeSource) -> None:
    """Have the monitor show the nodes of this source for as long as somebody else holds it."""
    with _lock:
        _live[next(_numbers)] = source


def live() -> list[NodeSource]:
    """The sources that are still in use, oldest first. In a forked child there are none."""
    with _lock:
        return [source for _, source in sorted(_live.items())]


def node_id(key: str, *names: str) -> str:
    """The id of the machine that is known by `key`: `node-1`, `node-2`, …, the same in this process whenever it comes.

    Args:
        key: what tells it from other machines, such as the cluster's own id of it.
        names: what it is called in texts (host name, address), which exports replace by the id.
    """
    with _lock:
        found = _ids.setdefault(key, f"node-{len(_ids) + 1}")
        _pseudonyms.update(dict.fromkeys((key, *names), found))
    return found


def add_names(node: str, *names: str) -> None:
    """Have exports replace these names of a machine by its id `node`, too."""
    with _lock:
        for name in names:
            _pseudonyms.setdefault(name, node)


def pseudonyms() -> dict[str, str]:
    """Every name of a machine that is known, and the id that replaces it in what leaves this machine."""
    with _lock:
        return {name: node for name, node in _pseudonyms.items() if name not in ("", node)}


def node_series(node: str, cores: Collection[int], gpus: int = 0) -> list[tuple[str, str]]:
    """The series of a node (its id) with these cores and so many GPUs, in order: names and units."""
    busy = [(f"cpu/{core}/busy", "%") for core in cores]
    each = [(f"gpu/{k}/{part}", unit) for k in range(gpus) for part, unit in GPU_PARTS]
    mean = [("gpu", "%")] if gpus else []  # of their utilisation, by the monitor
    return [(f"node/{node}/{part}", unit) for part, unit in (*busy, *PARTS, *mean, *each)]


@dataclass
class _State:
    """The newest readings of one node."""

    node: Node
    reading: Mapping[str, float]  # by the series' names
    read: float  # when it came, by the table's clock
    batches: int = 0  # delivered since the last `values`


class NodeTable:
    """A source that is told what happens: readings, deliveries, departures. Thread-safe; registers itself."""

    def __init__(self, stale_s: float = STALE_S, clock: Callable[[], float] = time.monotonic) -> None:
        """`stale_s`: a reading that is older counts as missing; some periods between two readings of a node."""
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}
        self._stale_s = stale_s
        self._clock = clock
        self._asked = clock()
        register(self)

    def add(self, key: str, name: str, cores: Collection[int], *aliases: str, gpus: Sequence[str] = ()) -> str:
        """A node works, or works again; returns its id. `key` and `aliases` as for `node_id`, `gpus` as of `Node`."""
        node = node_id(key, name, *aliases)
        with self._lock:
            state = self._states.setdefault(node, _State(Node(node, name), {}, self._clock()))
            state.node = Node(node, name, tuple(sorted(set(cores))), gpus=tuple(gpus))
        return node

    def update(self, node: str, reading: Mapping[str, float]) -> None:
        """A reading (`NodeSampler.read`) of a node (its id) has come; ignored for one that is not alive."""
        named = {f"node/{node}/{part}": value for part, value in reading.items()}
        with self._lock:
            state = self._states.get(node)
            if state is not None and state.node.alive:
                state.reading, state.read = named, self._clock()

    def delivered(self, node: str, batches: int = 1) -> None:
        """A node (its id) has delivered batches."""
        with self._lock:
            if node in self._states:
                self._states[node].batches += batches

    def gone(self, node: str, reason: str) -> None:
        """A node (its id) works no more; `reason` in words, for the page."""
        with self._lock:
            state = self._states.get(node)
            if state is not None:
                state.node = replace(state.node, alive=False, reason=reason)
                state.reading = {}

    def forget(self, node: str) -> None:
        """Keep nothing of a node (its id) any more."""
        with self._lock:
            self._states.pop(node, None)

    def nodes(self) -> list[Node]:
        """As `NodeSource`."""
        with self._lock:
            return [state.node for state in self._states.values()]

    def values(self) -> dict[str, float]:
        """As `NodeSource`."""
        now = self._clock()
        found: dict[str, float] = {}
        with self._lock:
            window, self._asked = max(now - self._asked, 1e-3), now
            for node, state in self._states.items():
                if state.node.alive:
                    found[f"node/{node}/batches"] = state.batches / window
                    if now - state.read <= self._stale_s:
                        found |= state.reading
                state.batches = 0
        return found


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.Lock()
    _live.clear()
