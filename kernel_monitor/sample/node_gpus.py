"""The GPUs of another machine ("node"), read in any process there through NVML.

As `node_sampler`, but on a thread of its own: a call to NVML may block for ever on a GPU in trouble.
"""

from __future__ import annotations

import math
import time
from typing import NoReturn

from .gpu.gauges import node_queries
from .gpu.nvml import Device, NvmlError, open_devices, uuid_of
from .gpu.query_thread import QueryTable, QueryThread

PERIOD_S = 1.0


class NodeGpus:
    """Readings of this machine's GPUs, from its making on; without NVML there are none.

    Attributes:
        names: the products' names, by NVML's index.
        uuids: NVML's, without `GPU-`; empty where it gives none.
    """

    def __init__(self, period: float = PERIOD_S) -> None:
        """`period`: s between two rounds of questions."""
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
        """The newest values by the series' names without `node/<id>/`; what has no value is left out.

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
        """Ask no more."""
        self._thread.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NodeGpus stays in its process: make one there")
