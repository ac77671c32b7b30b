"""The cost of watching a model for a step of 20 ms: steps with and without the watch, in pairs.

    python -m benchmarks.watch [--pairs 150] [--steps 8] [--json FILE]

One torch thread trains a small network, with enough work in its forward that a step takes about 20 ms, over a watched
iterable. In each pair a block of steps runs once with `monitor.watch(model, optimizer)` and once without; which comes
first alternates. A block counts by the CPU time of its thread per step: what others do on the machine is not in it, and
whatever the watch does is, because it does it on this thread. The ratio of the two is one figure; their median and its
95 % interval (bootstrap, 10,000 draws, fixed seed) are printed. Then the same for steps with next to nothing in them:
the µs that a watch takes, whatever the step. Last, a plain DataLoader: the µs that it costs a step to be attached to,
with the phases found without a line (`attached`), and the attaching alone.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from kernel_monitor.steps import attached, phase_times, watch, watch_loader

from .common import Bar, machine, report, spread, versions
from .overhead import interval

STEP_MS = 20.0
WIDTH = 256
IDLE_STEPS = 400


class Network(torch.nn.Module):
    """A small network whose forward is repeated until it takes the wanted time."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
        self.rounds = rounds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.rounds):
            x = self.layers(x).relu()
        return x


class Same(Dataset[torch.Tensor]):
    """A data set of one batch."""

    def __init__(self, batch: torch.Tensor) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batch


class Loop:
    """A training loop over batches that are there at once."""

    def __init__(self, width: int, rounds: int) -> None:
        self.model = Network(width, rounds)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._batch = torch.randn(32, width)
        self._batches: Iterator[Any] = iter(watch_loader(itertools.repeat(self._batch)))

    def block(self, steps: int, *, on: bool) -> float:
        """Run a block of steps; return the ms of CPU time per step."""
        found = watch(self.model, self.optimizer) if on else None
        self._run(3)  # the first may find caches cold
        began = time.thread_time()
        self._run(steps)
        spent = time.thread_time() - began
        if found is not None:
            found.stop()
        return 1e3 * spent / steps

    def attached_block(self, steps: int, how: str) -> float:
        """Run a block of steps over a DataLoader; return the ms of CPU time per step.

        Args:
            steps: number of steps.
            how: `plain`; `attached`, as a running monitor does; `no phases`: attached, and no phases are measured.
        """
        if how != "plain":
            attached.attach()
        if how == "no phases":
            phase_times.on_loop_start = None
        batches = iter(DataLoader(Same(self._batch), batch_size=None))
        self._run(5, batches)  # the model is found in the second
        began = time.thread_time()
        self._run(steps, batches)
        spent = time.thread_time() - began
        attached.detach()
        return 1e3 * spent / steps

    def _run(self, steps: int, batches: Iterator[Any] | None = None) -> None:
        for batch in itertools.islice(batches or self._batches, steps):
            self.optimizer.zero_grad()
            self.model(batch).sum().backward()
            self.optimizer.step()


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--steps", type=int, default=8, help="steps of each half of a pair")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loop = Loop(WIDTH, sized())
    pairs = measured(loop, options.pairs, options.steps)
    ratios = [on / off for on, off in pairs]
    low, high = interval(ratios)
    lower_on, lower_off = (statistics.median(half) for half in zip(*pairs, strict=True))
    _, lower, upper = spread(ratios)
    median = statistics.median(ratios)
    print(f"{len(pairs)} pairs of {options.steps} steps, medians: on {lower_on:.3f}, off {lower_off:.3f} ms a step")
    print(f"on / off: median {median:.4f}, 95 % interval {low:.4f} to {high:.4f}, quartiles {lower:.4f} to {upper:.4f}")
    idle = measured(Loop(4, 1), options.pairs, IDLE_STEPS)
    extra = [1e3 * (on - off) for on, off in idle]
    least, most = interval(extra)
    cost = statistics.median(extra)
    print(f"what a watch takes of a step that does next to nothing: {cost:.1f} µs, {least:.1f} to {most:.1f}")
    costs = measured_attached(Loop(4, 1), options.pairs)
    for how, values in costs.items():
        least, most = interval(values)
        print(f"a DataLoader, {how}: {statistics.median(values):.1f} µs a step, {least:.1f} to {most:.1f}")
    return report(
        [
            Bar("CPU time of a step, watched / not watched", median, 1.01, at_most=True),
            Bar(
                f"what a watch takes, % of a step of {STEP_MS:g} ms",
                100 * cost / (1e3 * STEP_MS),
                1.0,
                at_most=True,
            ),
            Bar(
                f"what an attached loader with phases takes, % of a step of {STEP_MS:g} ms",
                100 * statistics.median(costs["attached"]) / (1e3 * STEP_MS),
                0.2,
                at_most=True,
            ),
        ],
        {
            "ratios": ratios,
            "interval": [low, high],
            "extra_us": extra,
            "attached_us": costs,
            "machine": machine(),
            "versions": versions(),
        },
        options.json,
    )


def sized() -> int:
    """Return the rounds of the network's forward for which a step takes about `STEP_MS` ms of CPU time."""
    rounds = 4
    for _ in range(4):
        rounds = max(1, round(rounds * STEP_MS / Loop(WIDTH, rounds).block(10, on=False)))
    return rounds


def measured(loop: Loop, count: int, steps: int) -> list[tuple[float, float]]:
    """Run the pairs; return (on, off) of each, in ms per step."""
    pairs = []
    for number in range(count):
        halves = {on: loop.block(steps, on=on) for on in ((True, False) if number % 2 == 0 else (False, True))}
        pairs.append((halves[True], halves[False]))
    return pairs


def measured_attached(loop: Loop, count: int) -> dict[str, list[float]]:
    """Return the µs that a step takes more than one over a plain DataLoader, for each way of `attached_block`."""
    costs: dict[str, list[float]] = {"attached": [], "no phases": []}
    for number in range(count):
        ways = ("plain", "attached", "no phases")
        spent = {how: loop.attached_block(IDLE_STEPS, how) for how in (ways if number % 2 == 0 else ways[::-1])}
        for how, values in costs.items():
            values.append(1e3 * (spent[how] - spent["plain"]))
    return costs


if __name__ == "__main__":
    sys.exit(main())
