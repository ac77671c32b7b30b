"""Follows the other machines that work for the loops of this process: which there are, and their newest values."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import node_sources
from ..node_sources import Node, node_series
from ..store import Store
from ..text import line

if TYPE_CHECKING:
    from ..node_sources import NodeSource

LOOK_S = 1.0
"""Between two looks at which nodes there are: each change makes pages load their charts again, and the nodes of a
cluster come one after the other."""
SPARING = 10
"""Looks that take long are rarer: machines that come and go without end must not hold the other rows up."""
FADE_S = 3.0
"""How long a node that went delivers 0 batches/s before its values end: the charts' means of two seconds would else be
those of its last few rows, and rise to whatever they were."""
KEPT_GONE = 8  # nodes that are gone whose rows stay: on a cluster that grows and shrinks, machines come and go all day
MOST_GPUS = 64  # of a node that have rows
MOST_CORES = 2048  # of all nodes together, that have rows; beyond, a node has its other series only
LEFT = "no loader and no rank uses it any more"
UNFOLDED_CORES = 64  # of all nodes together, up to which their cores are shown without being asked for
_ID = re.compile(r"[\w.-]{1,64}")
_REASON_LETTERS = 300


class NodeTracker:
    """The nodes of all sources, asked on the sampler's reader thread. No source can raise here.

    `complain` is called with a sentence when a source fails.

    Attributes:
        nodes: those that have columns, in the order in which they came; a new object when anything about them changed.
    """

    def __init__(
        self, store: Store, complain: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.nodes: tuple[Node, ...] = ()
        self.unfolded: tuple[str, ...] | None = None  # as `Settings.unfolded`
        self._lock = threading.Lock()  # of `nodes`, which a setting changes, too
        self._store = store
        self._complain = complain
        self._clock = clock
        self._due = -math.inf
        self._gone: dict[str, None] = {}  # ids of all that went, the one that went first before the others
        self._owned: dict[int, list[Node]] = {}  # the last nodes of each live source, by its identity
        self._failed: dict[int, str] = {}  # why the values of a source could not be read
        self._series: frozenset[str] = frozenset()  # of the nodes that are alive
        self._batches: frozenset[str] = frozenset()  # of these, the rates of batches
        self._means: dict[str, list[str]] = {}  # series of means of the nodes that are alive, and of what
        self._fading: dict[str, float] = {}  # series of batches of nodes that just went, and until when they are 0

    def look(self) -> None:
        """Register nodes that came, changed or went; at most once in `LOOK_S`."""
        now = self._clock()
        if now >= self._due:
            self._look(now)
            self._due = now + max(LOOK_S, SPARING * (self._clock() - now))

    def _look(self, now: float) -> None:
        sources = node_sources.live()
        if not sources and not self.nodes:
            return
        self._owned = {id(source): self._nodes_of(source) for source in sources}
        self._failed = {key: cause for key, cause in self._failed.items() if key in self._owned}
        found: dict[str, Node] = {}
        for node in (node for nodes in self._owned.values() for node in nodes):
            other = found.get(node.id)
            found[node.id] = node if other is None else _joined(other, node)
        known = {node.id: node for node in self.nodes}
        fresh = known | found
        for key, node in known.items():
            if key not in found and node.alive:
                fresh[key] = replace(node, alive=False, reason=LEFT)
            elif not fresh[key].alive and not fresh[key].cores:
                # The past of a node that is gone keeps its rows.
                fresh[key] = replace(fresh[key], cores=node.cores, gpus=node.gpus)
        gone = [key for key in dict.fromkeys((*self._gone, *fresh)) if key not in fresh or not fresh[key].alive]
        newest = {*gone[-KEPT_GONE:], *fresh}  # others are forgotten
        self._gone = {key: None for key in gone if key in newest}
        shown = {*list(self._gone)[-KEPT_GONE:], *(key for key, node in fresh.items() if node.alive)}
        with self._lock:
            nodes = folded(_bounded(node for key, node in fresh.items() if key in shown), self.unfolded)
            if nodes == self.nodes:
                return
            for node in nodes:
                if not node.alive and known.get(node.id, node).alive:
                    self._fading[f"node/{node.id}/batches"] = now + FADE_S
            self.nodes = nodes
            self._series = frozenset(
                name for node in nodes if node.alive for name, _ in node_series(node.id, node.cores, len(node.gpus))
            )
            self._batches = frozenset(name for name in self._series if name.endswith("/batches"))
            self._means = {
                f"node/{node.id}/{mean}": [f"node/{node.id}/{part.format(k)}" for k in of]
                for node in nodes
                if node.alive
                for mean, part, of in (
                    ("busy", "cpu/{}/busy", node.cores),
                    ("gpu", "gpu/{}/utilisation", range(len(node.gpus))),
                )
            }
            self._store.set_nodes(nodes)

    def unfold(self, unfolded: tuple[str, ...] | None) -> None:
        """Have pages show the cores of these nodes (`Settings.unfolded`)."""
        with self._lock:
            self.unfolded = unfolded
            nodes = folded(self.nodes, unfolded)
            if nodes != self.nodes:
                self.nodes = nodes
                self._store.set_nodes(nodes)

    def values(self) -> dict[str, float]:
        """The newest values of the nodes that are alive, by the series' names; batches of all sources together."""
        now = self._clock()
        self._fading = {name: until for name, until in self._fading.items() if now < until}
        found = dict.fromkeys(self._fading, 0.0)
        for source in node_sources.live() if self._owned else ():
            try:
                values = source.values()
                finite, series = math.isfinite, self._series
                known = {name: float(value) for name, value in values.items() if name in series and finite(value)}
                for name in self._batches.intersection(known):  # of all sources together
                    known[name] += found.get(name, 0.0)
                found |= known
            except Exception as error:  # noqa: BLE001 - what a source does must not end the sampling; the page shows it
                self._fail(source, error)
            else:
                self._failed.pop(id(source), None)
        for mean, parts in self._means.items():
            there = [found[name] for name in parts if name in found]
            if there:
                found[mean] = sum(there) / len(there)
        return found

    def _nodes_of(self, source: NodeSource) -> list[Node]:
        """The nodes of a source, checked; without values, and with the cause, where it failed."""
        before = self._owned.get(id(source), [])
        try:
            nodes = [_checked(node) for node in source.nodes()]
        except Exception as error:  # noqa: BLE001 - as in `values`
            self._fail(source, error)
            nodes = before
        for node in nodes:
            node_sources.add_names(node.id, node.name)
        cause = self._failed.get(id(source))
        if cause is None:
            return nodes
        return [replace(node, alive=False, reason=f"its load cannot be read: {cause}") for node in nodes]

    def _fail(self, source: NodeSource, error: Exception) -> None:
        cause = line(f"{type(error).__name__}: {error}", _REASON_LETTERS)
        if self._failed.get(id(source)) != cause:
            self._complain(f"The load of other machines is not shown: {cause}")
        self._failed[id(source)] = cause


def _checked(node: Node) -> Node:
    """A node as it can be shown and stored. A ValueError or TypeError names what cannot."""
    if not _ID.fullmatch(node.id):
        raise ValueError(f"{node.id!r:.80} is no id of a node")
    cores = tuple(sorted({int(core) for core in node.cores}))
    if cores and cores[0] < 0:
        raise ValueError(f"{node.id} has a core {cores[0]}")
    reason = None if node.alive or node.reason is None else line(str(node.reason), _REASON_LETTERS)
    gpus = tuple(line(str(gpu)) for gpu in node.gpus[:MOST_GPUS])
    return Node(node.id, line(str(node.name)) or node.id, cores, bool(node.alive), reason, gpus)


def folded(nodes: Iterable[Node], unfolded: tuple[str, ...] | None) -> tuple[Node, ...]:
    """The nodes, those folded that are not to be shown with their cores.

    `unfolded`: ids, or `all` or `none`; None: all nodes while they have few cores together, else none.
    """
    found = tuple(nodes)
    if unfolded is None:
        unfolded = ("all",) if sum(len(node.cores) for node in found) <= UNFOLDED_CORES else ("none",)
    return tuple(replace(node, folded="all" not in unfolded and node.id not in unfolded) for node in found)


def _bounded(nodes: Iterable[Node]) -> Iterable[Node]:
    """The nodes, those beyond `MOST_CORES` without their cores."""
    left = MOST_CORES
    for node in nodes:
        left -= len(node.cores)
        yield node if left >= 0 else replace(node, cores=())
        left += len(node.cores) if left < 0 else 0


def _joined(one: Node, other: Node) -> Node:
    """One node from what two sources say of it: it is alive if either says so."""
    cores = tuple(sorted({*one.cores, *other.cores}))
    return replace(one if one.alive or not other.alive else other, cores=cores, gpus=one.gpus or other.gpus)
