"""Load of another machine ("node"), read in any process there: busy cores, network, memory and GPUs.

A loader that uses other machines makes one `NodeSampler` in a process of each, calls `read` there as often as it
likes, and passes the readings to its `node_sources.NodeTable`. `NodeSampler` needs no thread, no numpy and no torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from .gpu.gauges import node_queries
from .gpu.nvml import Device, NvmlError, QueryTable, QueryThread, open_devices, uuid_of
from .host.cpu import Cpu, ProcStat, open_cpu
from .host.load import Memory, Network
from .probe import LINUX, PROC, SYS, Probe

_SERIES = {"network/received": "network/received", "network/sent": "network/sent", "memory/used": "memory"}
"""Names of the host's series, and their names after `node/<id>/`."""


class NodeSampler:
    """A reader of this machine's load, for one thread at a time.

    On Linux it reads `/proc`, elsewhere it uses psutil. If a file cannot be read, its values are missing.

    Args:
        proc, net: other places for `/proc` and `/sys/class/net`, which only tests need.
    """

    def __init__(self, proc: Path | None = None, net: Path | None = None) -> None:
        self._cpu: Cpu | None = None
        self._others: list[Probe] = []
        # Files that a container or another system does not show are skipped; the rest is read.
        with suppress(OSError, ValueError, psutil.Error):
            self._cpu = open_cpu() if proc is None or not LINUX else Cpu(ProcStat(proc / "stat"))
        makers: Sequence[Callable[[], Probe]] = (
            lambda: Network(proc or PROC, net or SYS / "class/net"),
            lambda: Memory(proc or PROC),
        )
        for make in makers:
            with suppress(OSError, ValueError, psutil.Error):
                self._others.append(make())
        self.read()  # rates and shares cover the time since the last read: this one begins it

    @property
    def cores(self) -> tuple[int, ...]:
        """The numbers of the logical cores seen so far, ascending."""
        return () if self._cpu is None else self._cpu.cores

    def read(self) -> dict[str, float]:
        """Return the values by series name without `node/<id>/`; series without a value are left out.

        `cpu/<core>/busy`: % of the time since the last read in which the core neither idled nor waited for I/O (Linux
        counts it in ticks of 10 ms). `network/received`, `network/sent`: bytes per second since the last read, without
        the loopback. `memory`: bytes in use, as `memory/used` in docs/metrics.md.
        """
        now = time.monotonic()
        found: dict[str, float] = {}
        if self._cpu is not None:
            pairs = zip(self._cpu.series, _values(self._cpu, now), strict=False)  # after a failure there is no value
            found.update((name, value) for (name, _), value in pairs if name.endswith("/busy"))
        for probe in self._others:
            pairs = zip(probe.series, _values(probe, now), strict=False)
            found |= {_SERIES[name]: value for (name, _), value in pairs if name in _SERIES}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NodeSampler stays in its process: make one there")


def _values(probe: Probe, now: float) -> Sequence[float]:
    """Read a probe; return an empty sequence where that fails."""
    try:
        return probe.read(now)
    except (OSError, ValueError, LookupError, psutil.Error):
        return ()


# ---- The GPUs of another machine ("node"), read in any process there through NVML.

PERIOD_S = 1.0


class NodeGpus:
    """A reader of this machine's GPUs, with a thread that starts at once; without NVML there are no readings.

    Args:
        period: seconds between two rounds of queries.

    Attributes:
        names: the products' names, by NVML's index.
        uuids: the GPUs' UUIDs by NVML's index, without `GPU-`; empty where NVML gives none.
    """

    def __init__(self, period: float = PERIOD_S) -> None:
        try:
            devices: list[Device] = open_devices()
        except NvmlError:
            devices = []
        self.names = tuple(device.name for device in devices)
        self.uuids = tuple(uuid_of(device) for device in devices)
        self._tables = [QueryTable(device, node_queries(device)) for device in devices]
        self._thread = QueryThread("kernel-monitor-nvml", "GPUs", self._tables, period)
        if devices:
            self._thread.thread.start()

    def read(self) -> dict[str, float]:
        """Return the newest values by series name without `node/<id>/`; series without a value are left out.

        `gpu/<k>/utilisation` in %, `gpu/<k>/clock` in MHz, `gpu/<k>/memory_used` in bytes; `<k>` is NVML's index.
        """
        if not self._tables or self._thread.silent(time.monotonic()):
            return {}
        parts = {"utilisation": "utilisation", "clock_sm": "clock", "memory_used": "memory_used"}
        return {
            f"gpu/{table.device.index}/{parts[part]}": value
            for table in self._tables
            for (part, _), value in zip(*table.table, strict=True)
            if part in parts and math.isfinite(value)
        }

    def stop(self) -> None:
        """Stop the thread after the query that runs."""
        self._thread.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NodeGpus stays in its process: make one there")
