"""The cost of profiling and exporting for a training loop that fills every core: its throughput and longest step.

    python -m benchmarks.stalls [--rounds 5] [--calls 60] [--threads CORES] [--json FILE]

One loop on CPU, with so many torch threads, some hundred small operators a step (that is what makes traces large),
watched by `watch_loader`. In each round: steps without anything; a profile of 10 steps; the steps while its trace is
written and read; the steps while the session is exported. The time of a step is taken by the loop itself from one
request for a batch to the next, boundary calls included. Throughput is steps a second, as a share of that without
anything. The profiler's own steps, with the boundaries where it starts, stops and is freed, are printed apart: they are
marked, and left out of every other figure.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from kernel_monitor import warm, watch_loader
from kernel_monitor.runtime import Monitor
from kernel_monitor.steps.measured_step import PROFILED
from kernel_monitor.steps.watched_loader import live
from kernel_monitor.stream.chart_documents import cache_folder

from .common import Bar, machine, report, versions

STEPS = 150
"""Undisturbed steps in each round."""
STEPS_PROFILED = 10
THROUGHPUT = 0.8
"""The least share of the undisturbed steps per second that must remain."""
LONGEST_STEP_S = 0.4
EXPORT_S = 6.0
STEP_S = 0.02
"""The shortest duration of a step: after its operators, it multiplies matrices until then."""


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
        """Run a step; return the s from one request for a batch to the next."""
        began = time.perf_counter()
        images = next(self.data)
        self.optimizer.zero_grad()
        self.model(images).sum().backward()
        self.optimizer.step()
        while time.perf_counter() - began < STEP_S:
            torch.mm(self.square, self.square)
        return time.perf_counter() - began


def measure(rounds: int, calls: int, steps: int = STEPS) -> tuple[dict[str, list[float]], list[float]]:
    """Run the rounds; return the durations of the steps (s) by part, and of the exports (s).

    The parts are `nothing`, `start`, `profiled`, `stop`, `reading`, `freed` and `exporting`.
    """
    found: dict[str, list[float]] = defaultdict(list)
    exports = []
    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor()
        monitor.start(record=folder)
        loop = Loop(calls)
        try:
            for _ in range(2 * steps):  # the first ones are slower
                loop.step()
            for number in range(rounds):
                found["nothing"] += [loop.step() for _ in range(steps)]
                _profile(monitor, loop, found)
                exports.append(_export(monitor, loop, found, Path(folder, f"{number}.html")))
        finally:
            monitor.stop()
    return dict(found), exports


def _profile(monitor: Monitor, loop: Loop, found: dict[str, list[float]]) -> None:
    monitor.profile(STEPS_PROFILED, wait=False)
    # The first request starts it, the one after the last profiled step stops it.
    first, *between, last = (loop.step() for _ in range(STEPS_PROFILED + 1))
    found["start"].append(first)
    found["profiled"] += between
    found["stop"].append(last)
    first_read = loop.meter.count + 1  # the one under way is the last
    durations: list[float] = []
    state = monitor.profiling
    while state is not None and state["state"] == "running":
        durations.append(loop.step())
        state = monitor.profiling
    assert state is not None
    assert state["state"] == "done", state["message"]
    loop.step()  # with its request the last of them ends
    steps, _ = loop.meter.steps_since(first_read)
    for duration, step in zip(durations, steps, strict=True):
        found["freed" if step.flags & PROFILED else "reading"].append(duration)


def _export(monitor: Monitor, loop: Loop, found: dict[str, list[float]], path: Path) -> float:
    """Export while the loop runs; return the seconds that it took."""
    with ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        export = pool.submit(monitor.export, path)
        while not export.done():
            found["exporting"].append(loop.step())
        took = time.perf_counter() - began
        export.result()
    return took


def bars(found: dict[str, list[float]], exports: list[float], slack: float = 1.0) -> list[Bar]:
    """Return the bars: throughput and longest step during our work, and the longest export.

    Args:
        found: durations of steps by part, as `measure` returns them.
        exports: durations of the exports.
        slack: factor for the allowed loss, step and export; a test on a busy machine needs some.
    """
    usual = statistics.fmean(found["nothing"])
    throughput = [
        Bar(f"throughput while {part}", usual / statistics.fmean(found[part]), 1 - slack * (1 - THROUGHPUT))
        for part in ("reading", "exporting")
    ]
    longest = [
        Bar(f"longest step while {part}", max(found[part]), slack * LONGEST_STEP_S, " s", at_most=True)
        for part in ("reading", "exporting")
    ]
    return [*throughput, *longest, Bar("longest export", max(exports), slack * EXPORT_S, " s", at_most=True)]


def main() -> int:
    """Print the parts and the bars; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=60, help="layers of the model")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch; all cores unless given")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warm.warm(cache_folder())  # as `%load_ext` has done long before anybody exports
    gc.collect()
    found, exports = measure(options.rounds, options.calls)
    print(f"{'':<12}{'steps':>8}{'median':>12}{'p99':>12}{'longest':>12}")
    figures: dict[str, Any] = {"machine": machine(), "versions": versions()}
    for part, steps in found.items():
        longest, p99 = max(steps), sorted(steps)[-1 - len(steps) // 100]
        row = {"steps": len(steps), "median": statistics.median(steps), "p99": p99, "longest": longest}
        figures[part] = row
        times = "".join(f"{1e3 * row[key]:>9.1f} ms" for key in ("median", "p99", "longest"))
        print(f"{part:<12}{len(steps):>8}{times}")
    print("start, profiled, stop, freed: the profiler's own steps; they are marked and count nowhere else")
    figures["exports"] = exports
    print(f"exports: {', '.join(f'{took:.1f} s' for took in exports)}")
    return report(bars(found, exports), figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
