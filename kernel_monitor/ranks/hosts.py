"""The other hosts of ranks: which rank reads the machine, and what it reads, as other machines of the page.

One rank of each host does, however many there are. The kernel's own host has the sampler for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..node_sources import NodeTable
from .identity import Identity, host_key
from .rank_device import without_prefix
from .rank_frames import Frame, Machine

SILENT_S = 5.0  # a chosen rank without a reading for so long is replaced by another one of its host
ENDED = "its ranks have ended"
Process = tuple[int, float]  # number and start, which name a process of a host


@dataclass
class _Host:
    node: str | None = None  # its id; None before its first reading
    reader: Process | None = None  # the rank that reads it
    since: float = 0.0  # when that was chosen, or gave its last reading (s)
    shape: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())  # cores, and the names of its GPUs
    uuids: tuple[str, ...] = ()


def node_key(host: str) -> str:
    """What tells a host (`host_key`) from other machines, for `node_sources.node_id`."""
    return f"rank-host {host}"


class Hosts:
    """Is told of frames, on the server's thread."""

    def __init__(
        self, gpu_here: Callable[[str], int | None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`gpu_here`: NVML's index on this host of a GPU's UUID; `clock`: s of our monotonic clock."""
        self.table = NodeTable(clock=clock)
        self._gpu_here = gpu_here
        self._clock = clock
        self._hosts: dict[str, _Host] = {}
        self._here: dict[str, int | None] = {}  # the answers of `gpu_here`

    def heard(self, frame: Frame) -> bool:
        """A frame has come; returns whether its rank is to read its machine."""
        who = frame.identity
        if who.host == host_key():
            return False
        host = self._hosts.setdefault(who.host, _Host())
        now, process = self._clock(), (who.pid, who.start)
        if frame.bye is not None:
            if host.reader == process:
                host.reader = None
            return False
        if host.reader is None or (host.reader != process and now - host.since > SILENT_S):
            host.reader, host.since = process, now
        if host.reader != process:
            return False
        if frame.machine is not None:
            host.since = now
            self._read(host, who, frame.machine)
        return True

    def look(self, alive: Collection[str]) -> None:
        """Hosts other than those of `alive` (`host_key` of each) have no rank any more."""
        for key, host in self._hosts.items():
            if key not in alive and host.shape[0]:
                host.reader, host.shape = None, ((), ())
                if host.node is not None:
                    self.table.gone(host.node, ENDED)

    def readers(self) -> list[int]:
        """The numbers of the processes that read their machine, each on its own host."""
        return [host.reader[0] for host in self._hosts.values() if host.reader is not None]

    def gpu(self, frame: Frame) -> int | None:
        """The index of the GPU that a rank works on, on its host; None: not known."""
        uuid = without_prefix(frame.device)
        if not uuid:
            return None
        if frame.identity.host == host_key():
            if uuid not in self._here:
                self._here[uuid] = self._gpu_here(uuid)
            return self._here[uuid]
        host = self._hosts.get(frame.identity.host)
        return host.uuids.index(uuid) if host is not None and uuid in host.uuids else None

    def _read(self, host: _Host, who: Identity, machine: Machine) -> None:
        shape = (tuple(machine.cores), tuple(machine.gpus))
        if shape != host.shape:
            host.shape = shape
            host.node = self.table.add(node_key(who.host), who.name, machine.cores, gpus=machine.gpus)
            host.uuids = tuple(without_prefix(uuid) for uuid in machine.uuids)
        if host.node is not None:
            self.table.update(host.node, machine.values)
