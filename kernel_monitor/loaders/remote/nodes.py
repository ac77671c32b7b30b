"""The nodes of a cluster, as the driver process reports them and the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NAME = "ray"  # of the engine
SENT = "the files are sent to it with each batch"


class RayNode(NamedTuple):
    """One node of the cluster."""

    id: str  # Ray's own
    address: str  # IP address
    workers: int  # of ours that take slots now
    answered: int  # batches that it has computed
    alive: bool
    reason: str | None  # why it is left out; None where it is not
    note: str | None  # what slows it down
    is_ours: bool = False  # whether it is the machine that trains
    is_sent_files: bool = False  # whether the files' contents are sent to it


def sentence(nodes: Sequence[RayNode]) -> str:
    """Where the workers are, and what is wrong with which node. By number: a state may be sent to others."""
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
        notes = [SENT if node.is_sent_files else None, node.note]
        parts += [f"node {number}: {note}" for note in notes if note is not None]
    gone = sum(not node.alive for node in nodes)
    if gone:
        parts.append("one node is gone" if gone == 1 else f"{gone} nodes are gone")
    return "; ".join(parts)


def last_line(error: BaseException) -> str:
    """What an error of Ray's comes to: it quotes whole tracebacks, at whose end the cause is."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
