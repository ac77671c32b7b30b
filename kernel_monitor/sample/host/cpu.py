"""Busy time, I/O wait and clock of every logical core, the cores' sockets and NUMA nodes, and facts about the host.

`busy` is the share of a window in which a core neither idled nor waited for I/O; time that a hypervisor took away
counts as busy, as in psutil. Guests' time is part of `user`, where Linux has already counted it. Linux counts in ticks
of 10 ms, so a window of 100 ms has steps of 10 %.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..probe import LINUX, NAN, PROC, SYS, Fact, Probe, parse_list, read

FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(len(FIELDS))
_CLOCK_FILES = ("scaling_cur_freq", "cpuinfo_cur_freq")  # in kHz; on most systems only root may read the second
NOT_COUNTED = "this system does not count it"


class Counts(NamedTuple):
    """Times since boot, in any unit, of the cores that are online."""

    cores: tuple[int, ...]  # the cores' numbers, ascending
    columns: Sequence[Sequence[float]]  # for each of `FIELDS` one time per core; zeros if the system does not count it
    total: Sequence[float]  # per core, the sum of its columns


class Cpu(Probe):
    """A probe of busy and iowait per core, in per cent of the time since the last read; read with each frame.

    A core that goes offline is missing until it is back; a new core adds its series.

    Args:
        source: returns the cores' times.
        counted: those of `FIELDS` that this system counts.
    """

    group = "cpu"
    period = 0.0

    def __init__(self, source: Callable[[], Counts], counted: Sequence[str] = FIELDS) -> None:
        self._source = source
        self._parts = ("busy", "iowait") if "iowait" in counted else ("busy",)
        self.reasons = {} if "iowait" in counted else {"cpu/<n>/iowait": NOT_COUNTED}
        self.cores: tuple[int, ...] = ()  # the numbers of all cores seen so far, ascending
        self._last: dict[int, tuple[float, float, float]] = {}  # total, idle and iowait of each core
        self._shares: dict[int, tuple[float, ...]] = {}  # the newest values
        self.newest = source()  # the times at the last read
        self._add_cores(self.newest.cores)
        self.split = Split(self, counted)

    def read(self, _now: float, /) -> Sequence[float]:
        counts = self.newest = self._source()
        self._add_cores(counts.cores)
        last: dict[int, tuple[float, float, float]] = {}
        shares: dict[int, tuple[float, ...]] = {}
        width, missing = len(self._parts), (NAN,) * len(self._parts)
        times = zip(counts.cores, counts.total, counts.columns[_IDLE], counts.columns[_IOWAIT], strict=True)
        for core, total, idle, iowait in times:
            old = self._last.get(core)
            if old is not None and total == old[0]:  # no tick since then: the last value stays, and the window grows
                last[core], shares[core] = old, self._shares.get(core, missing)
                continue
            last[core] = (total, idle, iowait)
            if old is not None and total > old[0]:
                window, idled, waited = total - old[0], idle - old[1], iowait - old[2]
                if idled < 0 or waited < 0 or idled + waited > window:  # these counters may go back a little
                    waited = min(max(waited, 0), window)
                    idled = min(max(idled, 0), window - waited)
                shares[core] = (100.0 - 100.0 * (idled + waited) / window, 100.0 * waited / window)[:width]
        self._last, self._shares = last, shares
        return [value for core in self.cores for value in shares.get(core, missing)]

    def _add_cores(self, cores: tuple[int, ...]) -> None:
        """Add the series of cores that were not seen before."""
        if cores != self.cores and not set(cores) <= set(self.cores):
            self.cores = tuple(sorted({*self.cores, *cores}))
            self.series = tuple((f"cpu/{core}/{part}", "%") for core in self.cores for part in self._parts)


class Split(Probe):
    """A probe of user, system and steal per core, in per cent of the time since its last read.

    It uses the times of the last read of `cpu`.
    """

    group = "cpu-split"
    period = 1.0

    def __init__(self, cpu: Cpu, counted: Sequence[str] = FIELDS) -> None:
        self._cpu = cpu
        self._parts = tuple(part for part in ("user", "system", "steal") if part in counted)
        self.reasons = {} if "steal" in counted else {"cpu/<n>/steal": NOT_COUNTED}
        self._cores: tuple[int, ...] = ()
        self._last: dict[int, Sequence[float]] = {}
        self._lay_out()

    def read(self, _now: float, /) -> Sequence[float]:
        if self._cpu.cores != self._cores:
            self._lay_out()
        counts = self._cpu.newest
        columns = counts.columns
        user = map(sum, zip(columns[_USER], columns[_NICE], strict=True))
        system = map(sum, zip(columns[_SYSTEM], columns[_IRQ], columns[_SOFTIRQ], strict=True))
        parts = [user, system, columns[_STEAL]][: len(self._parts)]
        rows: zip[tuple[float, ...]] = zip(counts.total, *parts, strict=True)
        found: dict[int, Sequence[float]] = dict(zip(counts.cores, rows, strict=True))
        last, self._last = self._last, found
        shares: dict[int, list[float]] = {}
        for core, (total, *times) in found.items():
            before, *counted = last.get(core, (total,))
            if total > before:
                parts_used = zip(times, counted, strict=True)
                shares[core] = [min(max(100.0 * (new - old) / (total - before), 0.0), 100.0) for new, old in parts_used]
        missing = [NAN] * len(self._parts)
        return [share for core in self._cores for share in shares.get(core, missing)]

    def _lay_out(self) -> None:
        self._cores = self._cpu.cores
        self.series = tuple((f"cpu/{core}/{part}", "%") for core in self._cores for part in self._parts)


class ProcStat:
    """A reader of the cores' times from Linux' `/proc/stat`, in ticks.

    psutil would drop the cores' numbers, which an offline core shifts, and read the whole file, which on large machines
    is mostly interrupt counts. The file is parsed by columns: for 256 cores that takes 0.3 ms, and 2 ms core by core.
    """

    def __init__(self, path: Path = PROC / "stat") -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._size = 4096

    def __call__(self) -> Counts:
        data = self._head()
        end = data.find(b"\nintr")
        if end < 0:  # some sandboxes leave that line out
            end = data.find(b"\n", data.rfind(b"\ncpu") + 1)
        words = data[data.index(b"\n") + 1 : end].split()  # the first line is the sum of all
        second = next((at for at, word in enumerate(words[1:], 1) if word.startswith(b"cpu")), len(words) or 1)
        cores = tuple(int(name[3:]) for name in words[::second])
        columns = tuple(list(map(int, words[place::second])) for place in range(1, len(FIELDS) + 1))
        return Counts(cores, columns, list(map(sum, zip(*columns, strict=True))))

    def _head(self) -> bytes:
        """Return the beginning of the file, at least as far as the lines of the cores."""
        while True:
            data = os.pread(self._file, self._size, 0)
            if len(data) < self._size or b"\nintr" in data:
                return data
            self._size *= 2


def psutil_counts() -> Counts:
    """Return the cores' times from psutil, in seconds."""
    cores = psutil.cpu_times(percpu=True)
    # Windows' fields `interrupt` and `dpc` are included in its `system`.
    columns = [[float(getattr(times, field, 0.0)) for times in cores] for field in FIELDS]
    return Counts(tuple(range(len(cores))), columns, list(map(sum, zip(*columns, strict=True))))


def open_cpu() -> Cpu:
    """Return the probe of this machine's cores."""
    if LINUX:
        return Cpu(ProcStat())
    counted = psutil.cpu_times()._fields
    return Cpu(psutil_counts, [field for field in FIELDS if field in counted])


class Frequency(Probe):
    """A probe of each core's present clock in MHz, every 2 s.

    The source is cpufreq where the system has it, else `/proc/cpuinfo`, which on a virtual machine may give the
    hypervisor's nominal value, and psutil on systems other than Linux. Without a source there are no series.
    """

    group = "frequency"
    period = 2.0

    def __init__(
        self, cores: Callable[[], Sequence[int]], system: Path = SYS / "devices" / "system" / "cpu", proc: Path = PROC
    ) -> None:
        self._cores = cores
        self._system = system
        self._cpuinfo = str(proc / "cpuinfo")
        self._known: Sequence[int] = ()
        self._ask: Callable[[], Sequence[float]] = list
        self._choose()

    def read(self, _now: float, /) -> Sequence[float]:
        if self._cores() != self._known:
            self._choose()
        return self._ask() if self.series else ()

    def _choose(self) -> None:
        """Choose the first source that has a core's clock."""
        cores = self._known = self._cores()
        sources: list[Callable[[], Sequence[float]]] = [
            *(partial(self._from_cpufreq, name) for name in _CLOCK_FILES),
            self._from_cpuinfo,
        ]
        for ask in sources if LINUX else [self._from_psutil]:
            if any(value == value for value in ask()):  # NaN is not equal to itself
                self._ask = ask
                self.series = tuple((f"cpu/{core}/frequency", "MHz") for core in cores)
                self.reasons = {}
                return
        self.series = ()
        self.reasons = {"frequency": "neither cpufreq nor /proc/cpuinfo gives the cores' clocks"}

    def _from_cpufreq(self, name: str) -> Sequence[float]:
        return [_mhz(f"{self._system}/cpu{core}/cpufreq/{name}") for core in self._known]

    def _from_cpuinfo(self) -> Sequence[float]:
        found: dict[int, float] = {}
        core = -1
        for line in read(self._cpuinfo).split(b"\n"):
            if line.startswith(b"processor"):
                core = int(line.rpartition(b":")[2])
            elif line.startswith(b"cpu MHz"):
                found[core] = float(line.rpartition(b":")[2])
        return [found.get(core, NAN) for core in self._known]

    def _from_psutil(self) -> Sequence[float]:
        clocks = psutil.cpu_freq(percpu=True) or []
        if len(clocks) == 1:  # macOS and Windows give one value for all cores
            clocks = clocks * len(self._known)
        return [float(clock.current) or NAN for clock in clocks[: len(self._known)]] or [NAN] * len(self._known)


def _mhz(file: str) -> float:
    """Return the MHz of a file in kHz; NaN if the core is offline or this user may not read the file."""
    try:
        return float(read(file)) / 1000.0
    except (OSError, ValueError):
        return NAN


# ---- Facts about the machine for the hello: processor, memory, and which cores share a socket or a NUMA node.

_TOPOLOGY_PERIOD_S = 2.0  # seconds between two searches for cores whose place is not known yet


def host_facts() -> dict[str, Any]:
    """Return `cpu_model`, `logical_cpus`, `memory_total` (bytes) and `platform` of this machine."""
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
    """Return how many cores are online. psutil would ask the C library, which always reads the real `/proc`."""
    if not LINUX:
        return psutil.cpu_count(logical=True)
    with (PROC / "stat").open("rb") as file:
        return sum(line.startswith(b"cpu") and not line.startswith(b"cpu ") for line in file)


@dataclass(eq=False)
class Topology(Fact):
    """The fact `{"sockets": [[cores]…], "numa": [[cores]…]}`, from Linux' `/sys/devices/system`.

    If the system lists no sockets or nodes, one of them holds all cores, and `reasons` gives the cause. A core that the
    system does not list (it is offline) keeps its last place, and is left out if it never had one.
    """

    cores: Callable[[], Sequence[int]]  # returns all cores
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
            found |= dict.fromkeys(parse_list(text), node)
        return found


def _grouped(cores: Sequence[int], place: Mapping[int, int]) -> list[list[int]]:
    """Return the cores grouped by their place, in the order of the places; one group if no place is known."""
    if not place:
        return [list(cores)]
    numbers = sorted({place[core] for core in cores if core in place})
    return [[core for core in cores if place.get(core) == number] for number in numbers]
