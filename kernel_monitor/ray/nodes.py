"""The nodes of a cluster, as the driver process reports them and the page shows them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import psutil

from ..node_sources import NodeTable, RayNode
from ..protocol.states import RemoteLimits

if TYPE_CHECKING:
    from .node_worker import Load

_SENT = "the files are sent to it with each batch"


def sentence(nodes: Sequence[RayNode]) -> str:
    """Return where the workers are, and what is wrong with which node. By number: a state may be sent to others."""
    parts = []
    working = [str(node.workers) for node in nodes if node.workers]
    total = sum(node.workers for node in nodes)
    if len(working) > 1:
        parts.append(f"{total} workers on {len(working)} nodes ({' + '.join(working)})")
    else:
        parts.append(f"{total} worker{'' if total == 1 else 's'} on one node" if working else "no workers now")
    for number, node in enumerate(nodes, 1):
        if not node.alive:
            continue
        if node.reason is not None:
            parts.append(f"node {number} is left out: {node.reason}")
            continue
        notes = [_SENT if node.is_sent_files else None, node.note]
        parts += [f"node {number}: {note}" for note in notes if note is not None]
    gone = sum(not node.alive for node in nodes)
    if gone:
        parts.append("one node is gone" if gone == 1 else f"{gone} nodes are gone")
    return "; ".join(parts)


# ---- How many images a second can reach this kernel from other machines, whatever these compute.

WINDOW = 30  # reports of the driver process, one a second
LEAST = 20  # batches in the window


class _Report(NamedTuple):
    cpu_s: float  # that the driver process has used since it began
    batches: int  # batches, images, bytes: that have come here since then
    images: int
    bytes: int


class PassedOn:
    """Counts what comes; on the thread that reads from the driver process. `limits` is for any thread."""

    def __init__(self) -> None:
        self._batches = self._images = self._bytes = 0
        self._reports: deque[_Report] = deque(maxlen=WINDOW)

    def received(self, images: int, size: int) -> None:
        """A batch of so many images and bytes has come."""
        self._batches, self._images, self._bytes = self._batches + 1, self._images + images, self._bytes + size

    def told(self, cpu_s: float) -> None:
        """The driver process has reported how many CPU seconds it has used."""
        self._reports.append(_Report(cpu_s, self._batches, self._images, self._bytes))

    def limits(self, nodes: Sequence[RayNode]) -> RemoteLimits | None:
        """Images/s; None before enough has come.

        Of the driver process: images / the CPU seconds that it takes for them, as all pass through its one thread. Of
        the link: its speed / the bytes of an image; None where the nodes are on this machine, or the speed is unknown.
        """
        reports = list(self._reports)
        if len(reports) < 2 or reports[-1].batches - reports[0].batches < LEAST:
            return None
        first, last = reports[0], reports[-1]
        images, cpu_s = last.images - first.images, last.cpu_s - first.cpu_s
        if not images or cpu_s <= 0:
            return None
        far = any(node.workers and not node.is_ours and not node.address.startswith("127.") for node in nodes)
        speed = self._link_speed if far else 0.0
        each = (last.bytes - first.bytes) / images
        return {"driver": images / cpu_s, "link": speed / each if speed and each else None}

    @functools.cached_property  # a state is asked for ten times a second
    def _link_speed(self) -> float:
        """Bytes/s of this machine's fastest network interface; 0 where none says."""
        try:
            found = psutil.net_if_stats()
        except OSError:
            return 0.0
        return max((one.speed * 1e6 / 8 for name, one in found.items() if one.isup and name != "lo"), default=0.0)


# ---- What the driver process reports of the nodes, as rows of the dashboard.


class NodeRows:
    """Is told by the thread that reads from the driver process; as long as it lives, the monitor shows its nodes."""

    def __init__(self) -> None:
        self._table = NodeTable()
        self._ids: dict[str, str] = {}  # the rows' ids by Ray's
        self._names: dict[str, str] = {}  # the shown names by Ray's ids

    def loaded(self, loads: Sequence[Load], nodes: Sequence[RayNode]) -> None:
        """Readings have come."""
        addresses = {node.id: node.address for node in nodes}
        for load in loads:
            if load.node not in self._ids:
                # Several nodes of one host, as in a cluster for tests, are told apart.
                same = sum(name.partition(" (")[0] == load.name for name in self._names.values())
                self._names[load.node] = f"{load.name} ({same + 1})" if same else load.name
            aliases = [name for name in (load.name, addresses.get(load.node, "")) if not name.startswith("127.")]
            self._ids[load.node] = self._table.add(load.node, self._names[load.node], load.cores, *aliases)
            self._table.update(self._ids[load.node], load.reading)

    def told(self, nodes: Sequence[RayNode]) -> None:
        """The nodes have changed."""
        for node in nodes:
            row = self._ids.get(node.id)
            if row is not None and (not node.alive or node.reason is not None):
                self._table.gone(row, node.reason or "it has left the cluster")

    def delivered(self, node: str) -> None:
        """A node, by Ray's id, has delivered a batch."""
        row = self._ids.get(node)
        if row is not None:
            self._table.delivered(row)
