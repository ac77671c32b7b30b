"""The host's memory."""

from __future__ import annotations

import psutil

from .probe import SLOW_PERIOD_S


class Memory:
    """Memory in use: what is not available for new work without swapping, in bytes and in per cent of all; at 2 Hz."""

    series = (("memory/used", "B"), ("memory/percent", "%"))
    period = SLOW_PERIOD_S

    def read(self, _now: float, /) -> tuple[float, float]:
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return float(used), 100.0 * used / memory.total
