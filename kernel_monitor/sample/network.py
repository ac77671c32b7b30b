"""Bytes received and sent by the host."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from .probe import NAN, SLOW_PERIOD_S, Rates


class Network:
    """Bytes per second of all network interfaces together, at 2 Hz.

    The loopback never counts: a kernel's own messages run over it. On Linux interfaces with hardware behind them count
    (a bridge or a bond would count the same bytes again); where none is visible, as in a container, all others do.
    """

    series = (("network/received", "B/s"), ("network/sent", "B/s"))
    period = SLOW_PERIOD_S

    def __init__(self, net: Path = Path("/sys/class/net")) -> None:
        self._net = net
        self._rates = Rates(2)
        self._names: frozenset[str] = frozenset()
        self._counted: tuple[str, ...] = ()

    def read(self, now: float, /) -> list[float]:
        interfaces = psutil.net_io_counters(pernic=True)
        if interfaces.keys() != self._names:
            self._names = frozenset(interfaces)
            counted = self._choose()
            if counted != self._counted:
                self._counted, self._rates = counted, Rates(2)
        if not self._counted:
            return [NAN, NAN]
        counters = [interfaces[name] for name in self._counted]
        return self._rates.update(
            now, (sum(entry.bytes_recv for entry in counters), sum(entry.bytes_sent for entry in counters))
        )

    def _choose(self) -> tuple[str, ...]:
        outward = [name for name in sorted(self._names) if name not in ("lo", "lo0") and "Loopback" not in name]
        if not sys.platform.startswith("linux"):
            return tuple(outward)
        hardware = [name for name in outward if (self._net / name / "device").exists()]
        return tuple(hardware or outward)
