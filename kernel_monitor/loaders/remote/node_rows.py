"""What the driver process reports of the nodes, as rows of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from ...node_sources import NodeTable
from .node_watch import Load
from .nodes import RayNode


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
