"""Which cores share a socket, and which a NUMA node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..system import SYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

PERIOD_S = 2.0
"""How often it is asked whether there is a core whose place is not known yet."""


class Topology:
    """`{"sockets": [[cores]…], "numa": [[cores]…]}`, from Linux' `/sys/devices/system`.

    Where the system does not tell, one socket or node holds all cores, and `reasons` says why.

    Args:
        cores: gives the cores that are to be placed; one that the system does not place (it is offline) keeps the place
            that it had, and is left out if it never had one.
        system: the folder that holds `cpu` and `node`.
    """

    key = "topology"
    period = PERIOD_S

    def __init__(self, cores: Callable[[], Sequence[int]], system: Path = SYS / "devices" / "system") -> None:
        self._cores = cores
        self._system = system
        self._sockets: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self.reasons: Mapping[str, str] = {}

    def read(self) -> dict[str, list[list[int]]]:
        cores = self._cores()
        self._sockets |= self._read_sockets(core for core in cores if core not in self._sockets)
        if not self._nodes.keys() >= set(cores):
            self._nodes |= self._read_nodes()
        reasons = {}
        if not self._sockets:
            reasons["topology/sockets"] = "this system does not tell which socket a core is in"
        if not self._nodes:
            reasons["topology/numa"] = "this system does not tell which NUMA node a core is in"
        self.reasons = reasons
        return {"sockets": _grouped(cores, self._sockets), "numa": _grouped(cores, self._nodes)}

    def _read_sockets(self, cores: Iterable[int]) -> dict[int, int]:
        found = {}
        for core in cores:
            try:
                text = (self._system / "cpu" / f"cpu{core}" / "topology" / "physical_package_id").read_text("ascii")
            except OSError:
                continue  # offline, or the system has no such file
            if (socket := int(text)) >= 0:  # some virtual machines say -1
                found[core] = socket
        return found

    def _read_nodes(self) -> dict[int, int]:
        found = {}
        for folder in (self._system / "node").glob("node[0-9]*"):
            try:
                text = (folder / "cpulist").read_text("ascii")
            except OSError:
                continue
            for core in numbers(text):
                found[core] = int(folder.name.removeprefix("node"))
        return found


def numbers(text: str) -> list[int]:
    """The numbers of a list as sysfs writes it: `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found


def _grouped(cores: Sequence[int], place: Mapping[int, int]) -> list[list[int]]:
    """The cores by their place, in the order of the places; all in one where no place is known."""
    if not place:
        return [list(cores)]
    groups: dict[int, list[int]] = {}
    for core in cores:
        if core in place:
            groups.setdefault(place[core], []).append(core)
    return [groups[number] for number in sorted(groups)]
