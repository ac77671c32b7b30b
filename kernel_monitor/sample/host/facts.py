"""Facts about the machine for the hello: processor, memory, and which cores share a socket or a NUMA node."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .. import probe
from ..probe import LINUX, PROC, SYS, Fact

_TOPOLOGY_PERIOD_S = 2.0  # how often cores are looked for whose place is not known yet


def facts() -> dict[str, Any]:
    """`cpu_model`, `logical_cpus`, `memory_total` (bytes) and `platform` of this machine."""
    return {
        "cpu_model": _cpu_model(),
        "logical_cpus": _logical_cpus(),
        "memory_total": psutil.virtual_memory().total,
        "platform": platform.system(),
    }


def _cpu_model() -> str:
    if LINUX:
        with (PROC / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    return platform.processor() or platform.machine()


def _logical_cpus() -> int | None:
    """Return how many are online; psutil asks the C library, which knows no other root."""
    if not LINUX:
        return psutil.cpu_count(logical=True)
    with (PROC / "stat").open("rb") as file:
        return sum(line.startswith(b"cpu") and not line.startswith(b"cpu ") for line in file)


@dataclass(eq=False)
class Topology(Fact):
    """`{"sockets": [[cores]…], "numa": [[cores]…]}`, from Linux' `/sys/devices/system`.

    Where the system does not list them, one socket or node holds all cores, and `reasons` gives the cause. A core that
    the system does not list (it is offline) keeps its last place, and is left out if it never had one.
    """

    cores: Callable[[], Sequence[int]]  # gives the cores that are to be placed
    system: Path = SYS / "devices" / "system"  # the folder that holds `cpu` and `node`

    key = "topology"
    period = _TOPOLOGY_PERIOD_S

    def __post_init__(self) -> None:
        self._sockets: dict[int, int] = {}  # by core
        self._nodes: dict[int, int] = {}

    def read(self) -> dict[str, list[list[int]]]:
        cores = self.cores()
        self._sockets |= self._read_sockets(core for core in cores if core not in self._sockets)
        if not self._nodes.keys() >= set(cores):
            self._nodes |= self._read_nodes()
        reasons = {}
        if not self._sockets:
            reasons["topology/sockets"] = "this system does not list which socket a core is in"
        if not self._nodes:
            reasons["topology/numa"] = "this system does not list which NUMA node a core is in"
        self.reasons = reasons
        return {"sockets": _grouped(cores, self._sockets), "numa": _grouped(cores, self._nodes)}

    def _read_sockets(self, cores: Iterable[int]) -> dict[int, int]:
        found = {}
        for core in cores:
            try:
                text = (self.system / "cpu" / f"cpu{core}" / "topology" / "physical_package_id").read_text("ascii")
            except OSError:
                continue  # offline, or the system has no such file
            if (socket := int(text)) >= 0:  # -1 on some virtual machines
                found[core] = socket
        return found

    def _read_nodes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for folder in (self.system / "node").glob("node[0-9]*"):
            try:
                text = (folder / "cpulist").read_text("ascii")
            except OSError:
                continue
            node = int(folder.name.removeprefix("node"))
            found |= dict.fromkeys(probe.numbers(text), node)
        return found


def _grouped(cores: Sequence[int], place: Mapping[int, int]) -> list[list[int]]:
    """The cores by their place, in the order of the places; all in one where no place is known."""
    if not place:
        return [list(cores)]
    numbers = sorted({place[core] for core in cores if core in place})
    return [[core for core in cores if place.get(core) == number] for number in numbers]
