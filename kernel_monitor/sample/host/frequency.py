"""The clock of every core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from ..probe import NAN, Probe
from ..procfs import LINUX, PROC, SYS, read

FILES = ("scaling_cur_freq", "cpuinfo_cur_freq")  # in kHz; the second is for root alone on most systems


class Frequency(Probe):
    """MHz of each core at the moment, every 2 s.

    From cpufreq where the system has it, else from `/proc/cpuinfo`, which on a virtual machine may be the
    hypervisor's nominal value; elsewhere from psutil. Absent where no source has it.

    Args:
        cores: gives the cores that have a series.
        system, proc: where the host's `devices/system/cpu` and `cpuinfo` are.
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
        self._paths: list[str] = []
        self._ask: Callable[[], Sequence[float]] = list
        self._choose()

    def read(self, _now: float, /) -> Sequence[float]:
        if self._cores() != self._known:
            self._choose()
        return self._ask() if self.series else ()

    def _choose(self) -> None:
        """Take the first source that has a core's clock."""
        cores = self._known = self._cores()
        sources: list[Callable[[], Sequence[float]]] = [self._from_psutil]
        if LINUX:
            self._paths = self._files(cores)
            sources = [self._from_cpufreq, self._from_cpuinfo] if self._paths else [self._from_cpuinfo]
        for ask in sources:
            if any(value == value for value in ask()):  # NaN is not equal to itself
                self._ask = ask
                self.series = tuple((f"cpu/{core}/frequency", "MHz") for core in cores)
                self.reasons = {}
                return
        self.series = ()
        self.reasons = {"frequency": "neither cpufreq nor /proc/cpuinfo gives the cores' clocks"}

    def _files(self, cores: Sequence[int]) -> list[str]:
        """Each core's file; empty if no core has one that can be read."""
        for name in FILES:
            files = [str(self._system / f"cpu{core}" / "cpufreq" / name) for core in cores]
            if any(_khz(file) == _khz(file) for file in files):
                return files
        return []

    def _from_cpufreq(self) -> Sequence[float]:
        return [_khz(file) / 1000.0 for file in self._paths]

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
        if len(clocks) == 1:  # macOS and Windows give one value for all
            clocks = clocks * len(self._known)
        return [float(clock.current) or NAN for clock in clocks[: len(self._known)]] or [NAN] * len(self._known)


def _khz(file: str) -> float:
    """NaN where the core is offline or the file is not for this user."""
    try:
        return float(read(file))
    except (OSError, ValueError):
        return NAN
