"""GPUs on which a kernel holds memory while it runs no cell: for pages and for the server's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..store import Rows

PARTS = ("utilisation", "memory", "memory_used", "process_utilisation", "process_memory")  # of a GPU's series
USED_PERCENT = 1.0  # of utilisation: a GPU below it is not used
HELD_PERCENT = 5.0  # of a GPU's memory: where the kernel's share is not known, less is the driver's own
AFTER_S = (60.0, 300.0)  # times without a cell that are stated; frames pause after ten minutes


@dataclass(frozen=True)
class GpuUse:
    """The use of one GPU in some rows."""

    index: int
    scope: str  # `kernel`: by the kernel's processes; `device`: by all, where NVML does not tell them apart
    utilization: float | None  # in the newest row, 0 to 1
    memory: float | None  # in the newest row, bytes
    held: bool  # the kernel holds memory on it
    last_used: float | None  # session s; None: in none of the rows


def gpu_uses(rows: Rows) -> list[GpuUse]:
    """Return the use of each GPU in `rows`, of which there is at least one."""
    return [_use(rows, gpu.index) for gpu in rows.schema.gpus]


def idle_sentences(rows: Rows, idle_s: float) -> list[str]:
    """Return a sentence on each GPU that the kernel holds and did not use in `rows`.

    Args:
        rows: since the last cell ended, or the newest minute.
        idle_s: time since the last cell ended.
    """
    passed = [limit for limit in AFTER_S if idle_s >= limit]
    if not passed or not len(rows.time):
        return []
    return [
        _sentence(use, passed[-1])
        for use in gpu_uses(rows)
        if use.held and use.utilization is not None and use.last_used is None
    ]


def _sentence(use: GpuUse, seconds: float) -> str:
    minutes = round(seconds / 60)
    since = f"No cell has run for more than {minutes} min" if minutes > 1 else "No cell has run for more than a minute"
    size = f"{(use.memory or 0.0) / 1e9:,.1f} GB of GPU {use.index}"
    if use.scope == "device":
        return f"{since}, and {size} are in use without work. What is this kernel's, a restart gives back."
    return f"{since}, and this kernel holds {size} without using it. A restart of the kernel gives it back."


def _use(rows: Rows, index: int) -> GpuUse:
    columns = rows.schema.columns
    parts = {part: rows.values[:, columns[name]] for part in PARTS if (name := f"gpu/{index}/{part}") in columns}
    newest = {part: float(values[-1]) for part, values in parts.items() if np.isfinite(values[-1])}
    own = newest.get("process_memory")
    # Where only the utilisation of single processes is not known, that of all of them stands for it.
    rate = "process_utilisation" if own is not None and "process_utilisation" in newest else "utilisation"
    busy = rows.time[parts[rate] >= USED_PERCENT] if rate in parts else rows.time[:0]
    return GpuUse(
        index,
        "device" if own is None else "kernel",
        # Who holds no memory on a GPU does not use it.
        0.0 if own == 0 else newest[rate] / 100 if rate in newest else None,
        newest.get("memory_used") if own is None else own,
        # Nothing is said of GPUs whose driver lists no processes at all: their memory may be a desktop's.
        own > 0 if own is not None else "process_memory" in parts and newest.get("memory", 0.0) > HELD_PERCENT,
        float(busy[-1]) if len(busy) else None,
    )


def series_of(indices: Sequence[int]) -> list[str]:
    """Return the names of the series that `gpu_uses` reads."""
    return [f"gpu/{index}/{part}" for index in indices for part in PARTS]
