"""A sweep that is stopped at random moments and goes on: the same cells, none measured twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from ..waiting import until
from .conftest import Start

GRID = ("--models", "resnet18", "--loads", "0", "1", "2", "--engines", "torchvision", "synthetic")
STOPS = 3
PATIENCE_S = 120.0


def passes(folder: Path) -> list[dict[str, Any]]:
    file = folder / "sweep.json"
    return list(json.loads(file.read_text("utf-8"))["passes"]) if file.exists() else []


def stop(process: subprocess.Popen[str]) -> str:
    """Interrupt the whole group, as a terminal does, and return what was said."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=60)[1]


def left(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_stopped_three_times_it_measures_every_cell_once(tmp_path: Path, start: Start) -> None:
    draw = random.Random(14)
    done: list[dict[str, Any]] = []
    for number in range(STOPS):
        process = start(tmp_path, *GRID)
        wanted = min(number + 1, 5)
        until(lambda: len(passes(tmp_path)) >= wanted or process.poll() is not None, PATIENCE_S)  # noqa: B023
        time.sleep(draw.uniform(0.0, 0.8))
        assert process.poll() is None, process.communicate()[1]
        said = stop(process)
        assert process.returncode == 130, said
        assert f"stopped after {len(passes(tmp_path))} passes" in said
        assert "the same command goes on from there" in said
        assert left(process.pid) == []
        now = passes(tmp_path)
        assert now[: len(done)] == done  # what was measured stays as it was
        assert (tmp_path / "index.html").exists()
        done = now
    out, said = (process := start(tmp_path, *GRID)).communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    found = passes(tmp_path)
    assert found[: len(done)] == done
    rows = [f"resnet18 · load {load}" for load in (0, 1, 2)]
    assert Counter((one["row"], one["number"]) for one in found) == {(row, k): 1 for row in rows for k in (1, 2)}
    assert all("problem" not in window for one in found for window in one["windows"].values())
    assert "resnet18 · load 2" in out
