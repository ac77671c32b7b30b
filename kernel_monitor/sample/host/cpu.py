"""Busy time and I/O wait of every logical core, and the busy time's parts.

`busy` is the share of a window in which a core neither idled nor waited for I/O; time that a hypervisor took away
counts as busy, as in psutil. Guests' time is part of `user`, where Linux has already counted it. Linux counts in ticks
of 10 ms, so a window of 100 ms has steps of 10 %.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import sub
from pathlib import Path
from typing import NamedTuple

import psutil

from ..probe import NAN, Probe
from ..procfs import LINUX, PROC

FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(len(FIELDS))
NOT_COUNTED = "this system does not count it"


class Counts(NamedTuple):
    """Times since boot, in any unit, of the cores that are online.

    Attributes:
        columns: for each of `FIELDS` one time per core; zeros where the system does not count it.
    """

    cores: tuple[int, ...]  # their numbers, ascending
    columns: Sequence[Sequence[float]]
    total: Sequence[float]  # per core, the sum of its columns


class Cpu(Probe):
    """Per core: busy and iowait in per cent of the time since the last read, each frame.

    A core that goes offline is missing until it is back; a new core adds its series.

    Args:
        source: gives the times of the cores that are online.
        counted: those of `FIELDS` that this system counts.

    Attributes:
        cores: the numbers of all cores seen so far, ascending.
        split: the probe of `user`, `system` and `steal`, from the times that the last read of this one found.
    """

    group = "cpu"
    period = 0.0

    def __init__(self, source: Callable[[], Counts], counted: Sequence[str] = FIELDS) -> None:
        self._source = source
        self._parts = ("busy", "iowait") if "iowait" in counted else ("busy",)
        self.reasons = {} if "iowait" in counted else {"cpu/<n>/iowait": NOT_COUNTED}
        self.cores: tuple[int, ...] = ()
        self._values: list[float] = []
        self._last: dict[int, tuple[float, float, float]] = {}
        self.newest = source()  # what the last read found
        self._columns: tuple[Sequence[float], ...] | None = None
        self._know(self.newest.cores)
        self.split = Split(self, counted)

    def read(self, _now: float, /) -> Sequence[float]:
        counts = self.newest = self._source()
        total, idle, iowait = counts.total, counts.columns[_IDLE], counts.columns[_IOWAIT]
        before, self._columns = self._columns, None
        if before is not None and counts.cores == self.cores:
            windows = list(map(sub, total, before[0]))
            if min(windows) > 0:  # the usual case, with as little work per core as there can be
                self._columns = (total, idle, iowait)
                self._share(windows, list(map(sub, idle, before[1])), list(map(sub, iowait, before[2])))
                return self._values
        if before is not None:
            self._last = dict(zip(self.cores, zip(*before, strict=True), strict=True))
        return self._read_each(counts)

    def _share(self, windows: list[float], idled: list[float], waited: list[float]) -> None:
        """All cores' values, from what each has counted since the last read."""
        # The counts of idle and iowait may step back a little.
        if min(idled) < 0:
            idled = [max(count, 0) for count in idled]
        if min(waited) < 0:
            waited = [max(count, 0) for count in waited]
        width = len(self._parts)
        busy = [100.0 - 100.0 * (i + w) / window for i, w, window in zip(idled, waited, windows, strict=True)]
        self._values[0::width] = busy if min(busy) >= 0 else [max(share, 0.0) for share in busy]
        if width > 1:
            waiting = [100.0 * w / window for w, window in zip(waited, windows, strict=True)]
            self._values[1::width] = waiting if max(waiting) <= 100 else [min(share, 100.0) for share in waiting]

    def _read_each(self, counts: Counts) -> Sequence[float]:
        """Core by core: some came or went, or have no tick since the last read."""
        self._know(counts.cores)
        width, last = len(self._parts), self._last
        times = zip(counts.total, counts.columns[_IDLE], counts.columns[_IOWAIT], strict=True)
        found = dict(zip(counts.cores, times, strict=True))
        self._last = {}
        whole = len(found) == len(self.cores)
        for place, core in enumerate(self.cores):
            new, old = found.get(core), last.get(core)
            shares = [NAN] * width
            if new is not None and old is not None and new[0] == old[0]:
                self._last[core] = old  # no tick since: the last value stands, and the window grows
                whole = False
                continue
            if new is not None:
                self._last[core] = new
                if old is not None and new[0] > old[0]:
                    window, idled, waited = (a - b for a, b in zip(new, old, strict=True))
                    free = (max(idled, 0.0) + max(waited, 0.0)) / window
                    shares = [100.0 - 100.0 * min(free, 1.0), 100.0 * min(max(waited, 0.0) / window, 1.0)][:width]
            self._values[width * place : width * (place + 1)] = shares
        if whole and self.cores:
            self._columns = (counts.total, counts.columns[_IDLE], counts.columns[_IOWAIT])
        return self._values

    def _know(self, cores: Sequence[int]) -> None:
        """Lay out the series for these cores, too."""
        known = tuple(sorted({*self.cores, *cores}))
        if known == self.cores:
            return
        width = len(self._parts)
        held = {core: self._values[width * place : width * (place + 1)] for place, core in enumerate(self.cores)}
        self._values = [value for core in known for value in held.get(core, [NAN] * width)]
        self.cores = known
        self.series = tuple((f"cpu/{core}/{part}", "%") for core in known for part in self._parts)


class Split(Probe):
    """Per core: user, system and steal in per cent of the time since the last read of this probe.

    Args:
        cpu: whose last read is looked at.
        counted: those of `FIELDS` that this system counts.
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
        values: list[float] = []
        for core in self._cores:
            new, old = found.get(core), last.get(core)
            window = 0.0 if new is None or old is None else new[0] - old[0]
            if new is None or old is None or window <= 0:
                values += [NAN] * len(self._parts)
                continue
            for a, b in zip(new[1:], old[1:], strict=True):
                share = (a - b) / window
                values.append(0.0 if share < 0 else 100.0 if share > 1 else 100.0 * share)
        return values

    def _lay_out(self) -> None:
        self._cores = self._cpu.cores
        self.series = tuple((f"cpu/{core}/{part}", "%") for core in self._cores for part in self._parts)


class ProcStat:
    """The cores' times from Linux' `/proc/stat`, in ticks.

    Read directly: psutil drops the cores' numbers, which an offline core shifts, and reads the whole file, which on
    large machines is mostly interrupt counts. Column by column: 256 cores take 0.3 ms so, and 2 ms core by core.
    """

    def __init__(self, path: Path = PROC / "stat") -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._size = 4096
        self._names: list[bytes] = []
        self._words: list[list[bytes]] = [[] for _ in FIELDS]
        self._columns: list[list[int]] = [[] for _ in FIELDS]
        self._cores: tuple[int, ...] = ()

    def __call__(self) -> Counts:
        data = self._head()
        end = data.find(b"\nintr")
        if end < 0:  # some sandboxes leave that line out
            end = data.find(b"\n", data.rfind(b"\ncpu") + 1)
        words = data[data.index(b"\n") + 1 : end].split()  # the first line is the sum of all
        second = next((at for at, word in enumerate(words[1:], 1) if word.startswith(b"cpu")), len(words))
        names = words[::second] if second else []
        if names != self._names:
            self._names, self._cores = names, tuple(int(name[3:]) for name in names)
        for place in range(len(FIELDS)):
            column = words[place + 1 :: second] if second else []
            if column != self._words[place]:  # nice, irq and steal often stand still
                self._words[place] = column
                self._columns[place] = list(map(int, column))
        columns = tuple(self._columns)
        return Counts(self._cores, columns, list(map(sum, zip(*columns, strict=True))))

    def _head(self) -> bytes:
        """The file as far as its cores go, if not further."""
        while True:
            data = os.pread(self._file, self._size, 0)
            if len(data) < self._size or b"\nintr" in data:
                return data
            self._size *= 2


def psutil_counts() -> Counts:
    """The cores' times from psutil, in seconds."""
    cores = psutil.cpu_times(percpu=True)
    # What Windows calls interrupt and dpc is part of its system.
    columns = [[float(getattr(times, field, 0.0)) for times in cores] for field in FIELDS]
    return Counts(tuple(range(len(cores))), columns, list(map(sum, zip(*columns, strict=True))))


def cpu() -> Cpu:
    if LINUX:
        return Cpu(ProcStat())
    counted = psutil.cpu_times()._fields
    return Cpu(psutil_counts, [field for field in FIELDS if field in counted])
