"""Bytes read from and written to the host's disks."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from .probe import NAN, SLOW_PERIOD_S, Rates


class Disk:
    """Bytes per second of all disks together, at 2 Hz.

    On Linux only devices with hardware behind them count (a partition, a mapped or a RAID device would count the same
    bytes again); where none is visible, all but loop and RAM devices do. Network file systems are not disks.
    """

    series = (("disk/read", "B/s"), ("disk/write", "B/s"))
    period = SLOW_PERIOD_S

    def __init__(self, block: Path = Path("/sys/block")) -> None:
        self._block = block
        self._rates = Rates(2)
        self._names: frozenset[str] = frozenset()
        self._counted: tuple[str, ...] = ()

    def read(self, now: float, /) -> list[float]:
        if not sys.platform.startswith("linux"):
            whole = psutil.disk_io_counters()
            return [NAN, NAN] if whole is None else self._rates.update(now, (whole.read_bytes, whole.write_bytes))
        disks = psutil.disk_io_counters(perdisk=True)
        if disks.keys() != self._names:
            self._names = frozenset(disks)
            counted = self._choose()
            if counted != self._counted:
                self._counted, self._rates = counted, Rates(2)
        if not self._counted:
            return [NAN, NAN]
        counters = [disks[name] for name in self._counted]
        return self._rates.update(
            now, (sum(disk.read_bytes for disk in counters), sum(disk.write_bytes for disk in counters))
        )

    def _choose(self) -> tuple[str, ...]:
        # A slash in a device's name (cciss/c0d0) is an exclamation mark in sysfs.
        folders = {name: self._block / name.replace("/", "!") for name in sorted(self._names)}
        whole = [name for name, folder in folders.items() if folder.exists()]
        hardware = [name for name in whole if (folders[name] / "device").exists()]
        return tuple(hardware or [name for name in whole if not name.startswith(("loop", "ram", "zram"))])
