"""GPUs that a kernel holds while no cell runs: whose memory and use count, and what the page says."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_monitor.analysis.idle_gpus import GpuUse, gpu_uses, idle_sentences
from kernel_monitor.store import Gpu, Rows, Schema, Series

NAN = float("nan")


def rows(**parts: list[float]) -> Rows:
    series = tuple(Series(f"gpu/0/{part}", "%") for part in parts)
    schema = Schema(version=1, interval=1.0, origin=0.0, capacity=10, series=series, gpus=(Gpu(0, "GPU", None),))
    values = np.array(list(parts.values()), dtype=np.float32).T
    return Rows(schema, np.arange(1, len(values) + 1), np.arange(1.0, len(values) + 1.0), values)


def use(**parts: list[float]) -> GpuUse:
    (found,) = gpu_uses(rows(**parts))
    return found


DEVICE = {"utilisation": [90.0, 90.0, 90.0], "memory": [50.0, 50.0, 50.0], "memory_used": [8e9, 8e9, 8e9]}
IDLE = {**DEVICE, "process_utilisation": [0.0, 0.0, 0.0], "process_memory": [2e9, 2e9, 2e9]}


def test_the_kernels_own_processes_count_where_they_are_known() -> None:
    own = use(**{**IDLE, "process_utilisation": [5.0, 0.0, 0.0]})
    assert own == GpuUse(0, "kernel", 0.0, 2e9, held=True, last_used=1.0)
    other = use(**{**IDLE, "process_utilisation": [NAN] * 3, "process_memory": [0.0] * 3})
    assert (other.held, other.utilization) == (False, 0.0), "it is another process that uses it"
    unknown = use(**{**IDLE, "process_utilisation": [NAN] * 3})
    assert unknown.last_used == 3.0, "it may be this kernel that uses it"
    assert unknown.utilization == pytest.approx(0.9)


def test_in_a_container_the_whole_gpu_counts() -> None:
    busy = use(**DEVICE, process_memory=[NAN] * 3)
    assert (busy.scope, busy.memory, busy.held, busy.last_used) == ("device", 8e9, True, 3.0)
    free = use(utilisation=[0.0, NAN, NAN], memory=[2.0] * 3, memory_used=[1e8] * 3)
    assert (free.held, free.utilization, free.last_used) == (False, None, None)


def test_the_page_says_so_after_a_minute_without_a_cell() -> None:
    assert idle_sentences(rows(**IDLE), 59.0) == []
    (sentence,) = idle_sentences(rows(**IDLE), 61.0)
    assert sentence == (
        "No cell has run for more than a minute, and this kernel holds 2.0 GB of GPU 0 without using it. "
        "A restart of the kernel gives it back."
    )
    assert idle_sentences(rows(**IDLE), 500.0)[0].startswith("No cell has run for more than 5 min, and this kernel")
    assert idle_sentences(rows(**{**IDLE, "process_utilisation": [0.0, 3.0, 0.0]}), 61.0) == []
    assert idle_sentences(rows(**{**IDLE, "process_memory": [0.0] * 3}), 61.0) == []
    idle = {**DEVICE, "utilisation": [0.0] * 3}
    (shared,) = idle_sentences(rows(**idle, process_memory=[NAN] * 3), 61.0)
    assert "8.0 GB of GPU 0 are in use without work" in shared
    assert idle_sentences(rows(**idle), 61.0) == []  # of a driver that lists no processes: it may be a desktop's
