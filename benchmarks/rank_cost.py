"""A rank's cost of joining a session, in alternating pairs: its thread's CPU, and its steps of 20 ms.

The rank is a process of its own that trains a small network with one thread, in steps of about 20 ms; the session's
server is in this process. Joined or not, the steps are measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernel_monitor import watch_loader
from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.rank_client import RankClient
from kernel_monitor.ranks.rank_server import RankServer
from kernel_monitor.ranks.session_files import VARIABLE

from .common import Bar, spread
from .overhead import interval

STEP_S = 0.02
MOST_CPU = 0.5  # % of a core
MOST_TIME = 1.002  # of the step time
MODEL = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten())
IMAGES = torch.rand(4, 3, 64, 64)
SETTLE_S = 0.6  # so that the last frames of one half are not in the next


def measure(pairs: int, seconds: float) -> list[Bar]:
    """Run the pairs, each half for about `seconds`; print the figures, and return the bars."""
    server = RankServer()
    try:
        words = [sys.executable, "-m", "benchmarks.rank_cost", server.folder, str(pairs), str(seconds)]
        # Otherwise its loops would join by themselves, in both halves.
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        ranks = server.ranks()
    finally:
        server.stop()
    figures: dict[str, Any] = json.loads(output)
    if len(ranks) != 1 or not ranks[0].steps:
        raise SystemExit("the server heard of no steps")
    ratios = figures["ratios"]
    low, high = interval(ratios)
    median, lower, upper = spread(ratios)
    print(
        f"{pairs} pairs of {figures['steps']} steps each, alone {1e3 * figures['alone']:.2f} ms a step (median)\n"
        f"joined / alone: median {median:.5f}, 95 % interval {low:.5f} to {high:.5f}, quartiles {lower:.5f} to "
        f"{upper:.5f}\nits thread: {figures['cpu']:.3f} % of a core"
    )
    return [
        Bar("a rank's thread, % of a core", figures["cpu"], MOST_CPU, at_most=True),
        Bar("step time joined / alone, at 20 ms", median, MOST_TIME, at_most=True),
    ]


def rank(folder: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Run the rank, alternating between joined and alone; return its figures."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_PORT="1")
    torch.set_num_threads(1)
    join = session_files.read(folder)
    turns, steps = _turns(), max(5, round(seconds / STEP_S))
    ratios, alone, spent, joined_s = [], [], 0.0, 0.0
    _half(turns, watch_loader(range(steps)))
    for number in range(pairs):
        found: dict[bool, float] = {}
        for joined in (True, False) if number % 2 == 0 else (False, True):
            loop = watch_loader(range(steps))
            client = None
            if joined:
                client = RankClient(folder, join)
                client.add(loop._kernel_monitor_source.meter)
            time.sleep(SETTLE_S)
            before, began = _cpu(), time.monotonic()
            found[joined] = _half(turns, loop)
            if client is not None:
                spent, joined_s = spent + _cpu() - before, joined_s + time.monotonic() - began
                client.stop()
        ratios.append(found[True] / found[False])
        alone.append(found[False])
    return {"ratios": ratios, "alone": statistics.median(alone), "steps": steps, "cpu": 100 * spent / joined_s}


def _half(turns: int, loop: Any) -> float:
    """Run a loop; return its seconds per step."""
    began, steps = time.perf_counter(), 0
    for _ in loop:
        _compute(turns)
        steps += 1
    return (time.perf_counter() - began) / steps


def _turns() -> int:
    """Return how many repetitions of the computation take `STEP_S` here."""
    return max(1, round(4 * STEP_S / min(_timed(4) for _ in range(20))))


def _timed(turns: int) -> float:
    began = time.perf_counter()
    _compute(turns)
    return time.perf_counter() - began


def _compute(turns: int) -> None:
    """Compute a part of a training step: forward and backward passes of a small network."""
    for _ in range(turns):
        MODEL(IMAGES).sum().backward()


def _cpu() -> float:
    """Return the CPU seconds of the client's thread; 0 without one."""
    return sum(
        int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
        for thread in threading.enumerate()
        if thread.name == "kernel-monitor-rank"
    )


if __name__ == "__main__":
    json.dump(rank(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])), sys.stdout)
