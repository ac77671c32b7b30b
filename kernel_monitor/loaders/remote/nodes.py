"""The nodes of a cluster, as the driver process reports them and the page shows them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from ...protocol.states import RemoteLimits

NAME = "ray"  # of the engine
_SENT = "the files are sent to it with each batch"


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


def last_line(error: BaseException) -> str:
    """Return what an error of Ray's comes to: it quotes whole tracebacks, at whose end the cause is."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


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
