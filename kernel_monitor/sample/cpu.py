"""Load and I/O wait of every logical core.

`busy` is the share of a window in which a core did anything but idle or wait for I/O; time that a hypervisor took away
counts as busy, as in psutil. The kernel counts in ticks of 10 ms, so a window of 100 ms has steps of 10 %.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import psutil

from .probe import NAN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Times = tuple[int, float, float, float]
"""(core, total, idle, iowait), the times in any one unit since boot."""


class Cpu:
    """Per core: busy and iowait in per cent of the time since the last read, each frame.

    The cores are those that are online at the start; one that goes offline is missing until it is back.

    Args:
        source: gives the times of the cores that are online.
    """

    period = 0.0

    def __init__(self, source: Callable[[], Sequence[Times]]) -> None:
        self._source = source
        self.cores = tuple(sorted(times[0] for times in source()))
        self.series = tuple((f"cpu/{core}/{part}", "%") for core in self.cores for part in ("busy", "iowait"))
        self._last: dict[int, Times] = {}
        self._place = {core: 2 * place for place, core in enumerate(self.cores)}
        self._values = [NAN] * len(self.series)

    def read(self, _now: float, /) -> Sequence[float]:
        online = self._source()
        last, values, seen = self._last, self._values, 0
        for times in online:
            core, total, idle, iowait = times
            place = self._place.get(core)
            if place is None:
                continue
            seen += 1
            before = last.get(core)
            if before is not None:
                window = total - before[1]
                if window == 0:
                    continue  # no tick since: the last value stands, and the window grows
                if window > 0:
                    idle_share = (idle - before[2]) / window
                    waiting = (iowait - before[3]) / window
                    # The counts of idle and iowait may step back a little. A comparison with NaN is false.
                    busy = 1.0 - (idle_share if idle_share > 0 else 0.0) - (waiting if waiting > 0 else 0.0)
                    values[place] = 100.0 * busy if busy > 0 else 0.0
                    values[place + 1] = 0.0 if waiting < 0 else 100.0 if waiting > 1 else 100.0 * waiting
                else:
                    values[place] = values[place + 1] = NAN
            last[core] = times
        if seen < len(self.cores):
            for core in set(self.cores).difference(times[0] for times in online):
                last.pop(core, None)
                values[self._place[core]] = values[self._place[core] + 1] = NAN
        return values


class ProcStat:
    """The cores' times from Linux' `/proc/stat`, in ticks.

    Read directly: psutil drops the cores' numbers, which an offline core shifts, and reads the whole file, which on
    large machines is mostly interrupt counts.
    """

    def __init__(self, path: str = "/proc/stat") -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = 4096

    def __call__(self) -> list[Times]:
        cores: list[Times] = []
        for line in self._head().split(b"\n")[1:]:
            if not line.startswith(b"cpu"):
                break
            name, *fields = line.split(None, 9)
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
            total = user + nice + system + idle + iowait + irq + softirq + steal
            cores.append((int(name[3:]), total, idle, iowait))
        return cores

    def _head(self) -> bytes:
        """The file as far as its cores go, if not further."""
        while True:
            data = os.pread(self._file, self._size, 0)
            if len(data) < self._size or b"\nintr" in data:
                return data
            self._size *= 2


def psutil_times() -> list[Times]:
    """The cores' times from psutil, in seconds; iowait is NaN where the system does not count it."""
    cores = []
    for core, times in enumerate(psutil.cpu_times(percpu=True)):
        iowait = getattr(times, "iowait", NAN)
        cores.append((core, sum(times), times.idle, iowait))
    return cores


def cpu() -> Cpu:
    """The cores of this machine."""
    return Cpu(ProcStat() if sys.platform.startswith("linux") else psutil_times)
