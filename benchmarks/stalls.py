"""How long profiling and exporting stop a training loop, beside the longest of its steps without them.

    python -m benchmarks.stalls [--rounds 5] [--calls 60] [--threads 1] [--json FILE]

One loop on CPU, with so many torch threads, some hundred small operators a step (that is what makes traces large),
watched by `watch_loader`. In each round: steps without anything; a profile of 10 steps; the steps while its trace is
written and read; the steps while the session is exported. The time of a step is taken by the loop itself from one
request for a batch to the next, boundary calls included. The stop is the longest step of a part less the part's median,
in steps without anything: at most one is allowed. (That all steps are slower while another process reads or renders on
the same cores is no stop: the medians say how much.) The profiler's own steps, with the boundaries where it starts,
stops and is freed, are printed apart: they are marked, and left out of every other figure.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernel_monitor import watch_loader
from kernel_monitor.live import Monitor
from kernel_monitor.steps.records import PROFILED
from kernel_monitor.steps.registry import live

from .common import Bar, machine, report, versions

STEPS = 150
"""Steps of a part, at least."""
STEPS_PROFILED = 10
STEP_S = 0.02
"""The least that a step takes: what the operators leave of it is spent multiplying."""


class Loop:
    """A training loop that keeps its own time."""

    def __init__(self, calls: int) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(calls)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, foreach=True)
        self.images = torch.ones(64, 32)
        self.square = torch.ones(128, 128)
        self.data = iter(watch_loader(self._batches(), name="train"))
        self.meter = live()[-1].meter

    def _batches(self) -> Iterator[torch.Tensor]:
        while True:
            yield self.images

    def step(self) -> float:
        """One step; s from one request for a batch to the next."""
        began = time.perf_counter()
        images = next(self.data)
        self.optimizer.zero_grad()
        self.model(images).sum().backward()
        self.optimizer.step()
        while time.perf_counter() - began < STEP_S:
            torch.mm(self.square, self.square)
        return time.perf_counter() - began


def measure(rounds: int, calls: int, steps: int = STEPS) -> dict[str, list[float]]:
    """Durations of the steps (s) by part: `nothing`, `start`, `profiled`, `stop`, `reading`, `freed`, `exporting`."""
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor()
        monitor.start(record=folder)
        loop = Loop(calls)
        try:
            for _ in range(2 * steps):  # the first ones are slower
                loop.step()
            for number in range(rounds):
                found["nothing"] += [loop.step() for _ in range(steps)]
                _profile(monitor, loop, found, steps)
                _export(monitor, loop, found, steps, Path(folder, f"{number}.html"))
        finally:
            monitor.stop()
    return dict(found)


def _profile(monitor: Monitor, loop: Loop, found: dict[str, list[float]], least: int) -> None:
    monitor.profile(STEPS_PROFILED, wait=False)
    # The first request starts it, the one after the last profiled step stops it.
    first, *between, last = (loop.step() for _ in range(STEPS_PROFILED + 1))
    found["start"].append(first)
    found["profiled"] += between
    found["stop"].append(last)
    first_read = loop.meter.count + 1  # the one under way is the last
    steps: list[float] = []
    while True:
        state = monitor.profiling
        assert state is not None
        if state["state"] != "running" and len(steps) >= least:
            break
        steps.append(loop.step())
    assert state["state"] == "done", state["message"]
    loop.step()  # with its request the last of them ends
    told, _ = loop.meter.steps_since(first_read)
    for took, one in zip(steps, told, strict=True):
        found["freed" if one.flags & PROFILED else "reading"].append(took)


def _export(monitor: Monitor, loop: Loop, found: dict[str, list[float]], least: int, path: Path) -> None:
    failed: list[Exception] = []

    def export() -> None:
        try:
            monitor.export(path)
        except Exception as error:  # noqa: BLE001 - raised by the thread that measures
            failed.append(error)

    thread = threading.Thread(target=export)
    thread.start()
    steps: list[float] = []
    while thread.is_alive() or len(steps) < least:
        steps.append(loop.step())
    thread.join()
    if failed:
        raise failed[0]
    found["exporting"] += steps


def bars(found: dict[str, list[float]], factor: float = 1.0) -> list[Bar]:
    """The stops, in steps of the loop; at most `factor` of one is allowed."""
    usual = statistics.median(found["nothing"])
    return [
        Bar(f"stop while {part}", (max(found[part]) - statistics.median(found[part])) / usual, factor, at_most=True)
        for part in ("reading", "exporting")
    ]


def main() -> int:
    """Prints the parts and the bars; exit status 1 if one is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=60, help="layers of the model")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--threads", type=int, default=1, help="torch's, which all wait for the slowest of them")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    gc.collect()
    found = measure(options.rounds, options.calls)
    print(f"{'':<12}{'steps':>8}{'median':>12}{'p99':>12}{'longest':>12}")
    figures: dict[str, Any] = {"machine": machine(), "versions": versions()}
    for part, steps in found.items():
        longest, p99 = max(steps), sorted(steps)[-1 - len(steps) // 100]
        row = {"steps": len(steps), "median": statistics.median(steps), "p99": p99, "longest": longest}
        figures[part] = row
        times = "".join(f"{1e3 * row[key]:>9.1f} ms" for key in ("median", "p99", "longest"))
        print(f"{part:<12}{len(steps):>8}{times}")
    print("start, profiled, stop, freed: the profiler's own steps; they are marked and count nowhere else")
    usual = figures["nothing"]["median"]
    print(
        f"(without anything the longest step is {(figures['nothing']['longest'] - usual) / usual:.1f} steps too long)"
    )
    return report(bars(found), figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
