"""NVML from one start of the library to its end: its GPUs and the threads that query them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import nvml
from .gauges import bus_queries, load_queries, slow_queries
from .gpm import Gpm
from .gpu_processes import ProcessMemory, ProcessUtilisation
from .mig import MigTable
from .query_thread import QueryTable, QueryThread
from .xid import XidWatch

SLOW_S = 1.0  # how often everything but utilisation, memory and power is read
JOIN_S = 3.0  # how long the threads have to come back from NVML at the end


class NvmlSession:
    """The threads, of which the fast one is the caller's own."""

    def __init__(
        self,
        devices: list[nvml.Device],
        interval: float,  # seconds between two rounds of the fast queries
        pids: frozenset[int] | None,  # the processes of the kernel's tree, if they are known
        notify: Callable[[dict[str, Any]], None],  # called on a thread of its own with the notice for an Xid event
    ) -> None:
        self.devices = devices
        self.set_processes(pids)
        self.migs = [MigTable(device) for device in devices]
        fast, slow, bus = [], [], []
        for device in devices:
            # The first query of a group gives its age and window.
            fast.append(QueryTable(device, load_queries(device)))
            tree = [ProcessMemory(device), ProcessUtilisation(device)]
            slow.append(QueryTable(device, [*slow_queries(device), *tree, Gpm(device)]))
            bus.append(QueryTable(device, bus_queries(device)))
        self.fast = QueryThread("nvml", "load, memory and power", fast, interval)
        self.slow = QueryThread("nvml-slow", "temperatures, clocks and counters", [*self.migs, *slow], SLOW_S)
        self.bus = QueryThread("nvml-bus", "PCIe and NVLink", bus, SLOW_S)
        self.threads = (self.fast, self.slow, self.bus)
        self.xid = XidWatch(devices, notify)
        self.tables = [
            (device, ((self.fast, fast[which]), (self.slow, slow[which]), (self.bus, bus[which]), (self.slow, mig)))
            for which, (device, mig) in enumerate(zip(devices, self.migs, strict=True))
        ]

    def set_processes(self, pids: frozenset[int] | None) -> None:
        for device in self.devices:
            device.pids = pids

    def start(self) -> None:
        """Start all threads but the fast one, which is for the caller: `fast.rounds`."""
        self.slow.thread.start()
        self.bus.thread.start()
        self.xid.start()

    def stop(self) -> None:
        """Ask no more."""
        for thread in self.threads:
            thread.stop()
        self.xid.stop()

    def gone(self) -> bool:
        """Whether a GPU answers again only when NVML is started again."""
        for device, tables in self.tables:
            load = tables[0][1]
            if device.gone and len(load.reasons) < len(load.table.parts):
                device.gone = False  # it answers
        return any(device.gone for device in self.devices)

    def close(self) -> None:
        """Stop, and shut NVML down unless a thread does not come back from it."""
        self.stop()
        threads = [self.slow.thread, self.bus.thread, self.xid.thread]
        for thread in threads:
            if thread.ident is not None:
                thread.join(JOIN_S)
        if any(thread.is_alive() for thread in threads):
            return
        for _, tables in self.tables:
            for _, table in tables:
                table.close()
        nvml.close(self.devices[0].nvml)
