"""Bytes read from and written to the host's disks, and how busy the busiest is."""

from __future__ import annotations

from pathlib import Path

import psutil

from ..probe import NAN, SLOW_PERIOD_S, Rates
from ..system import LINUX, PROC, SYS
from . import procfs

_BYTES = (("disk/read", "B/s"), ("disk/write", "B/s"))
_BUSY = ("disk/busy", "%")
_SECTOR = 512  # bytes; the unit of /proc/diskstats whatever the disk's own is

Counters = tuple[int, int, int]
"""Of one disk since boot: bytes read, bytes written, milliseconds in which it had work."""


class Disk:
    """Bytes per second of all disks together, and the share of the window in which the busiest one had work; at 2 Hz.

    On Linux only devices with hardware behind them count (a partition, a mapped or a RAID device would count the same
    bytes again); where none is visible, all but loop and RAM devices do. Network file systems are not disks.
    """

    group = "disk"
    period = SLOW_PERIOD_S

    def __init__(self, proc: Path = PROC, block: Path = SYS / "block") -> None:
        self._file = f"{proc}/diskstats"
        self._block = block
        self._names: frozenset[str] = frozenset()
        self._rates: dict[str, Rates] = {}
        self._whole = Rates(2)
        self.series: tuple[tuple[str, str], ...] = ()
        self.reasons: dict[str, str] = {}
        self._told = True
        if LINUX and (unreadable := procfs.why_not(self._file)):
            self._told, self.reasons = False, {"disk": unreadable}
        elif LINUX:
            self._look(self._disks())
        elif psutil.disk_io_counters() is None:
            self._told, self.reasons = False, {"disk": "no disk is visible here"}
        else:
            self.series = _BYTES
            self.reasons = {"disk/busy": "only Linux tells how long a disk had work"}

    def read(self, now: float, /) -> list[float]:
        if not self._told:
            return []
        if not LINUX:
            whole = psutil.disk_io_counters()
            return [NAN, NAN] if whole is None else self._whole.update(now, (whole.read_bytes, whole.write_bytes))
        disks = self._disks()
        if disks.keys() != self._names:
            self._look(disks)
        if not self._rates:
            return []
        rates = [rate.update(now, disks[name]) for name, rate in self._rates.items()]
        # A disk that came or was reset has no rate yet: the others' stand.
        read, written, busy = ([value for value in column if value == value] for column in zip(*rates, strict=True))
        if not read or not written or not busy:
            return [NAN, NAN, NAN]
        return [sum(read), sum(written), min(100.0, max(busy) / 10.0)]

    def _disks(self) -> dict[str, Counters]:
        """Every block device's counters."""
        disks = {}
        for line in procfs.read(self._file).splitlines():
            # Documentation/admin-guide/iostats.rst: after the name reads, merged, sectors, ms, writes, merged,
            # sectors, ms, in flight, ms with work.
            fields = line.split(None, 13)
            disks[fields[2].decode()] = (_SECTOR * int(fields[5]), _SECTOR * int(fields[9]), int(fields[12]))
        return disks

    def _look(self, disks: dict[str, Counters]) -> None:
        """Choose what counts; a disk that counted before keeps its rate."""
        self._names = frozenset(disks)
        # A slash in a device's name (cciss/c0d0) is an exclamation mark in sysfs.
        folders = {name: self._block / name.replace("/", "!") for name in sorted(self._names)}
        whole = [name for name, folder in folders.items() if folder.exists()]
        hardware = [name for name in whole if (folders[name] / "device").exists()]
        counted = hardware or [name for name in whole if not name.startswith(("loop", "ram", "zram"))]
        self._rates = {name: self._rates.get(name) or Rates(3) for name in counted}
        self.series = (*_BYTES, _BUSY) if counted else ()
        self.reasons = {} if counted else {"disk": "no disk is visible here"}
