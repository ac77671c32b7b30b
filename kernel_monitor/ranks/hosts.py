"""The other hosts of ranks: which rank reads the machine, and what it reads, as other machines of the page.

One rank of each host does, however many there are. The kernel's own host has the sampler for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..node_sources import NodeTable
from .identity import host_key, without_prefix
from .rank_frames import Frame, Identity, Machine

SILENT_S = 5.0  # a chosen rank without a reading for so long is replaced by another one of its host
ENDED = "its ranks have ended"
MOST_HOSTS = 64  # at once
MOST_KNOWN = 256  # of a session: each has a name in texts, and columns in its recording
_MOST_SHAPES = 4  # sets of cores and GPUs that a host may have one after the other; further ones are not shown
MOST_CORES = 2048  # of all hosts together; a host beyond has no rows of cores, and
MOST_GPUS = 512  # none of GPUs
KEPT_GONE = 8  # hosts whose ranks have ended, and that stay known to the page
_KEPT_GPUS = 64  # of this host, whose index is remembered
Process = tuple[int, float]  # number and start, which name a process of a host


@dataclass
class _Host:
    node: str | None = None  # its id; None before its first reading
    reader: Process | None = None  # the rank that reads it
    since: float = 0.0  # when that was chosen, or gave its last reading (s)
    shape: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())  # cores, and the names of its GPUs
    uuids: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()  # that have rows


@dataclass
class _Known:
    """The facts about a host that are kept for the whole session."""

    name: str  # the first one that was said
    shapes: set[int] = field(default_factory=set)  # hashes of those that it had


def node_key(host: str) -> str:
    """Return what tells a host (`host_key`) from other machines, for `node_sources.node_id`."""
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
        self._known: dict[str, _Known] = {}  # all hosts that ever had ranks, by `host_key`
        self._gone: dict[str, None] = {}  # nodes whose ranks have ended, those that ended first before the others

    def admitted(self, frame: Frame) -> Frame:
        """Return a frame with the name that its host had first. A ValueError if it is of one host too many."""
        who = frame.identity
        if who.host == host_key():
            return frame
        if who.host not in self._known and len(self._known) >= MOST_KNOWN:
            raise ValueError(f"more than {MOST_KNOWN} other hosts in a session")
        if who.host not in self._hosts and len(self._hosts) >= MOST_HOSTS:
            raise ValueError(f"more than {MOST_HOSTS} other hosts at once")
        name = self._known.setdefault(who.host, _Known(who.name)).name
        return frame if name == who.name else frame._replace(identity=who._replace(name=name))

    def heard(self, frame: Frame) -> bool:
        """Take a frame; returns whether its rank is to read its machine."""
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

    def refresh(self, alive: Collection[str]) -> None:
        """Hosts other than those of `alive` (`host_key` of each) have no rank any more."""
        for key in [key for key in self._hosts if key not in alive]:
            node = self._hosts.pop(key).node
            if node is not None:
                self.table.gone(node, ENDED)
                self._gone.pop(node, None)
                self._gone[node] = None
        while len(self._gone) > KEPT_GONE:
            node = next(iter(self._gone))
            del self._gone[node]
            self.table.forget(node)

    def readers(self) -> list[int]:
        """Return the numbers of the processes that read their machine, each on its own host."""
        return [host.reader[0] for host in self._hosts.values() if host.reader is not None]

    def gpu(self, frame: Frame) -> int | None:
        """Return the index of the GPU that a rank works on, on its host; None: not known."""
        uuid = without_prefix(frame.device)
        if not uuid:
            return None
        if frame.identity.host == host_key():
            if uuid not in self._here:
                if len(self._here) >= _KEPT_GPUS:
                    self._here.clear()
                self._here[uuid] = self._gpu_here(uuid)
            return self._here[uuid]
        host = self._hosts.get(frame.identity.host)
        return host.uuids.index(uuid) if host is not None and uuid in host.uuids else None

    def _read(self, host: _Host, who: Identity, machine: Machine) -> None:
        shape = (tuple(machine.cores), tuple(machine.gpus))
        if shape != host.shape:
            known = self._known.setdefault(who.host, _Known(who.name)).shapes
            known.add(hash(shape))
            if len(known) > _MOST_SHAPES:
                known.remove(hash(shape))
                return
            others = [other for other in self._hosts.values() if other is not host]
            room = sum(len(other.cores) for other in others) + len(shape[0]) <= MOST_CORES
            fits = sum(len(other.uuids) for other in others) + len(shape[1]) <= MOST_GPUS
            host.shape, host.cores = shape, shape[0] if room else ()
            host.uuids = tuple(without_prefix(uuid) for uuid in machine.uuids) if fits else ()
            host.node = self.table.add(node_key(who.host), who.name, host.cores, gpus=shape[1] if fits else ())
            self._gone.pop(host.node, None)
        if host.node is not None:
            shown = {"cpu": bool(host.cores), "gpu": bool(host.uuids)}
            self.table.update(
                host.node, {name: value for name, value in machine.values.items() if shown.get(name[:3], True)}
            )
