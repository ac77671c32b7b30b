"""Bytes per second of the host's disks and network interfaces, and how busy the busiest disk is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import psutil

from .. import procfs
from ..probe import NAN, SLOW_PERIOD_S, Probe, Rates
from ..procfs import LINUX, PROC, SYS

_SECTOR = 512  # bytes; the unit of /proc/diskstats for every disk

Counters = tuple[int, ...]


class _Devices(Probe, ABC):
    """All devices of a kind together, at 2 Hz.

    Those with hardware behind them count, where any is visible (a partition, a bridge or a RAID device would count the
    same bytes again), else those of `counted`.
    """

    period = SLOW_PERIOD_S
    columns: tuple[tuple[str, str], ...]
    none: str  # why there is nothing, where no device counts

    def __init__(self, file: str, folder: Path) -> None:
        self._file = file
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self._rates: dict[str, Rates] = {}
        unreadable = procfs.why_not(file) if LINUX else ""
        self._readable = not unreadable
        if unreadable:
            self.reasons = {self.group: unreadable}
        else:
            self._choose(self.counters())

    @abstractmethod
    def counters(self) -> dict[str, Counters]:
        """Of every device: bytes in both directions since it came, and where it is known its busy time in ms."""

    @abstractmethod
    def counted(self, names: list[str]) -> list[str]:
        """Which of these devices count, if none has hardware behind it."""

    def folder_of(self, name: str) -> Path:
        # A slash in a device's name (cciss/c0d0) is an exclamation mark in sysfs.
        return self._folder / name.replace("/", "!")

    def read(self, now: float, /) -> list[float]:
        if not self._readable:
            return []
        counters = self.counters()
        if counters.keys() != self._names:
            self._choose(counters)
        if not self._rates:
            return []
        rates = [rate.update(now, counters[name]) for name, rate in self._rates.items()]
        # A device that came or was reset has no rate yet: the others' stand.
        received, sent, *busy = ([value for value in column if value == value] for column in zip(*rates, strict=True))
        values = [sum(column) if column else NAN for column in (received, sent)]
        return values + [min(100.0, max(column) / 10.0) if column else NAN for column in busy]

    def _choose(self, counters: Mapping[str, Counters]) -> None:
        """Choose the devices that count; a device that counted before keeps its rate."""
        self._names = frozenset(counters)
        candidates = self.counted(sorted(self._names))
        hardware = [name for name in sorted(self._names) if LINUX and (self.folder_of(name) / "device").exists()]
        self._rates = {name: self._rates.get(name) or Rates() for name in hardware or candidates}
        self.series = self.columns if self._rates else ()
        self.reasons = {} if self._rates else {self.group: self.none}


class Disk(_Devices):
    """Bytes read and written, and the share of the window in which the busiest disk had work (Linux).

    Network file systems are not disks.
    """

    group = "disk"
    none = "no disk is visible here"

    def __init__(self, proc: Path = PROC, block: Path = SYS / "block") -> None:
        self.columns = (("disk/read", "B/s"), ("disk/write", "B/s"), *([("disk/busy", "%")] if LINUX else []))
        super().__init__(f"{proc}/diskstats", block)
        if self.series and not LINUX:
            self.reasons = {"disk/busy": "only Linux counts how long a disk had work"}

    def counters(self) -> dict[str, Counters]:
        if not LINUX:
            whole = psutil.disk_io_counters()
            return {} if whole is None else {"all": (whole.read_bytes, whole.write_bytes)}
        disks: dict[str, Counters] = {}
        for line in procfs.read(self._file).splitlines():
            # Documentation/admin-guide/iostats.rst: after the name reads, merged, sectors, ms, writes, merged,
            # sectors, ms, in flight, ms with work.
            fields = line.split(None, 13)
            disks[fields[2].decode()] = (_SECTOR * int(fields[5]), _SECTOR * int(fields[9]), int(fields[12]))
        return disks

    def counted(self, names: list[str]) -> list[str]:
        if not LINUX:
            return names
        return [
            name for name in names if not name.startswith(("loop", "ram", "zram")) and self.folder_of(name).exists()
        ]


class Network(_Devices):
    """Bytes received and sent. The loopback never counts: a kernel's own messages run over it."""

    group = "network"
    columns = (("network/received", "B/s"), ("network/sent", "B/s"))
    none = "no interface but the loopback is visible here"

    def __init__(self, proc: Path = PROC, net: Path = SYS / "class/net") -> None:
        super().__init__(f"{proc}/net/dev", net)

    def counters(self) -> dict[str, Counters]:
        if not LINUX:
            found = psutil.net_io_counters(pernic=True)
            return {name: (entry.bytes_recv, entry.bytes_sent) for name, entry in found.items()}
        interfaces: dict[str, Counters] = {}
        for line in procfs.read(self._file).splitlines()[2:]:
            name, _, rest = line.rpartition(b":")
            fields = rest.split(None, 9)
            interfaces[name.strip().decode(errors="replace")] = (int(fields[0]), int(fields[8]))
        return interfaces

    def counted(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in ("lo", "lo0") and "Loopback" not in name]
