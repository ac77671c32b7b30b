"""The few figures of a status bar, from the rows of about the last second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..store import Rows, Schema

if TYPE_CHECKING:
    from ..protocol.message_types import MachineFigures

PERIOD_S = 1.0


def glance(rows: Rows, *, loaders: Sequence[str]) -> MachineFigures:
    """`cpu`, `gpu` (%), `memory_used`, `memory_total`, `gpu_memory_used`, `gpu_memory_total` (B), `images` (1/s).

    CPU is of the cores that this process may use, memory of its container where that has a limit; what is not known
    is None.

    Args:
        rows: the rows to average over.
        loaders: the ids of the live loaders, whose rates are added.
    """
    schema = rows.schema
    limits = schema.host.get("limits") or {}
    allowed = set(limits.get("cpus") or schema.cpus)
    limit = limits.get("memory")
    container = limit is not None and "container/memory" in schema.columns
    gpus = [gpu.index for gpu in schema.gpus]
    totals = [gpu.memory_total for gpu in schema.gpus if gpu.memory_total is not None]
    return {
        "cpu": _mean(rows, [f"cpu/{core}/busy" for core in schema.cpus if core in allowed]),
        "gpu": _mean(rows, [f"gpu/{index}/utilisation" for index in gpus]),
        "memory_used": _last(rows, ["container/memory" if container else "memory/used"]),
        "memory_total": limit if container else schema.host.get("memory_total"),
        "gpu_memory_used": _last(rows, [f"gpu/{index}/memory_used" for index in gpus]),
        "gpu_memory_total": sum(totals) if totals else None,
        "images": _sum_of_means(rows, [f"loader/{loader}/images" for loader in loaders]),
    }


def _columns(schema: Schema, names: list[str]) -> list[int]:
    return [schema.columns[name] for name in names if name in schema.columns]


def _mean(rows: Rows, names: list[str]) -> float | None:
    values = rows.values[:, _columns(rows.schema, names)]
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _last(rows: Rows, names: list[str]) -> float | None:
    """The sum of the newest values."""
    found = []
    for column in _columns(rows.schema, names):
        values = rows.values[:, column]
        found += values[np.isfinite(values)][-1:].tolist()
    return float(sum(found)) if found else None


def _sum_of_means(rows: Rows, names: list[str]) -> float | None:
    means = [_mean(rows, [name]) for name in names]
    known = [mean for mean in means if mean is not None]
    return float(sum(known)) if known else None
