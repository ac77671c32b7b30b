"""Kernels of a real GPU in a profile of ten steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_monitor import watch_loader
from kernel_monitor.runtime import Monitor


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Monitor]:
    monitor = Monitor()
    monitor.start(interval=0.05, record=tmp_path)
    yield monitor
    monitor.stop()


def test_kernels_and_their_launches_are_counted(monitor: Monitor) -> None:
    matrix = torch.ones(512, 512, device="cuda")
    host = torch.ones(512, 512)
    for number, _ in enumerate(watch_loader([[0] * 4] * 40, name="train")):
        if number == 20:
            monitor.profile(10, wait=False)
        for _k in range(3):
            torch.mm(matrix, matrix)
        host.to("cuda")
    torch.cuda.synchronize()
    state = monitor.profiler.ended(120)
    assert state is not None
    assert state["state"] == "done", state
    result: Any = state["result"]
    assert result["gpu_reason"] is None
    assert sum(row["share"] for row in result["gpu"]) == pytest.approx(1, abs=0.01)
    assert any(row["launches"] == 30 for row in result["gpu"]), result["gpu"]
    copies = [row for row in result["gpu"] if row["name"].startswith("Memcpy HtoD")]
    assert sum(row["launches"] for row in copies) == 10
    assert any("LaunchKernel" in row["name"] for row in result["cpu"]) or len(result["cpu"]) == 10


def test_a_second_profile_of_the_same_process_has_kernels_too(monitor: Monitor) -> None:
    matrix = torch.ones(512, 512, device="cuda")
    found = []
    for _ in range(2):
        for number, _batch in enumerate(watch_loader([[0] * 4] * 40, name="train")):
            if number == 5:
                monitor.profile(10, wait=False)
            torch.mm(matrix, matrix)
            time.sleep(0.001)
        state = monitor.profiler.ended(120)
        assert state is not None
        assert state["state"] == "done", state
        result: Any = state["result"]
        found.append(max(row["launches"] for row in result["gpu"]))
    assert found == [10, 10]
