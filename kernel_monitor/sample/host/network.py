"""Bytes received and sent by the host."""

from __future__ import annotations

from pathlib import Path

import psutil

from ..probe import NAN, SLOW_PERIOD_S, Rates
from ..system import LINUX, PROC, SYS
from . import procfs


class Network:
    """Bytes per second of all network interfaces together, at 2 Hz.

    The loopback never counts: a kernel's own messages run over it. On Linux interfaces with hardware behind them count
    (a bridge or a bond would count the same bytes again); where none is visible, as in a container, all others do.
    """

    group = "network"
    period = SLOW_PERIOD_S

    def __init__(self, proc: Path = PROC, net: Path = SYS / "class/net") -> None:
        self._file = f"{proc}/net/dev"
        self._net = net
        self._names: frozenset[str] = frozenset()
        self._rates: dict[str, Rates] = {}
        self.series: tuple[tuple[str, str], ...] = ()
        self.reasons: dict[str, str] = {}
        unreadable = procfs.why_not(self._file) if LINUX else ""
        self._told = not unreadable
        if self._told:
            self._look(self._interfaces())
        else:
            self.reasons = {"network": unreadable}

    def read(self, now: float, /) -> list[float]:
        if not self._told:
            return []
        interfaces = self._interfaces()
        if interfaces.keys() != self._names:
            self._look(interfaces)
        if not self._rates:
            return []
        rates = [rate.update(now, interfaces[name]) for name, rate in self._rates.items()]
        # An interface that came or was reset has no rate yet: the others' stand.
        received, sent = ([value for value in column if value == value] for column in zip(*rates, strict=True))
        return [sum(received) if received else NAN, sum(sent) if sent else NAN]

    def _interfaces(self) -> dict[str, tuple[int, int]]:
        """Bytes received and sent by every interface since it came."""
        if not LINUX:
            counters = psutil.net_io_counters(pernic=True)
            return {name: (entry.bytes_recv, entry.bytes_sent) for name, entry in counters.items()}
        interfaces = {}
        for line in procfs.read(self._file).splitlines()[2:]:
            name, _, rest = line.rpartition(b":")
            fields = rest.split(None, 9)
            interfaces[name.strip().decode(errors="replace")] = (int(fields[0]), int(fields[8]))
        return interfaces

    def _look(self, interfaces: dict[str, tuple[int, int]]) -> None:
        """Choose what counts; an interface that counted before keeps its rate."""
        self._names = frozenset(interfaces)
        outward = [name for name in sorted(self._names) if name not in ("lo", "lo0") and "Loopback" not in name]
        hardware = [name for name in outward if LINUX and (self._net / name / "device").exists()]
        counted = hardware or outward
        self._rates = {name: self._rates.get(name) or Rates(2) for name in counted}
        self.series = (("network/received", "B/s"), ("network/sent", "B/s")) if counted else ()
        self.reasons = {} if counted else {"network": "no interface but the loopback is visible here"}
