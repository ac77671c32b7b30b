"""The cost of a swap for a running training loop: the stall, the time from the click, the memory.

    python -m benchmarks.swap [--swaps 200] [--timed 100] [--step-ms 20] [--workers N] [--batch 4]

A loop takes batches and sleeps 20 ms for each: like a step on a GPU, a sleep leaves the processor free. Another thread
switches at random moments, 0.1 to 0.5 s after the last switch took place, as a user or a script would. All happens in
one epoch, so that no epoch's end is taken for a swap. The batch is so small that the loop hardly waits for data; its
waits are printed.

stall   the longest step from the click until `NEAR` steps after the first new batch, minus the median step: the delay
        that the swap causes in the loop.
click   the time from `switch()` to the first batch of the new engine in the loop; batches in flight come before it.

The first switch of a process, which loads DALI or starts with idle workers, is `cold`: each is measured in a process
of its own.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from kernel_monitor.loaders import SwitchableLoader, switchable

from .common import Bar, dataloader, images, machine, percentile, report, spread, versions

NEAR = 5  # steps after the first new batch that still count as near the swap
SETTLED = 10  # swaps after which memory is compared with the end
LEAD = 50  # steps before the first click
BAR_CLICK_MS = 250.0
BAR_MEMORY_MB = 60.0
LONGEST_S = 900.0


class Swap(NamedTuple):
    """A swap: the old and the new engine, s from the click to its first batch, s of stall."""

    source: str
    target: str
    click: float
    stall: float


def main() -> int:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swap", description=__doc__.splitlines()[0])
    parser.add_argument("--swaps", type=int, default=200, help="in all, for the memory")
    parser.add_argument("--timed", type=int, default=100, help="the first of them, for the times")
    parser.add_argument("--step-ms", type=float, default=20.0, help="that the loop sleeps for each batch")
    parser.add_argument("--images", type=int, default=512, help="files")
    parser.add_argument("--batch", type=int, default=4, help="samples in a batch")
    parser.add_argument("--workers", type=int, default=min(cores, 16), help="of the DataLoader")
    parser.add_argument("--cold-runs", type=int, default=3, help="processes for each cold figure")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and targets of the clicks")
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--cold", nargs=2, metavar=("FROM", "TO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        print(json.dumps(cold_swap(options, *options.cold)))
        return 0
    if not SETTLED < options.swaps >= options.timed:
        parser.error(f"--swaps must be more than {SETTLED}, and --timed no more than that")

    print(f"{machine()}\n{versions()}")
    print(
        f"{options.swaps} swaps in a loop that sleeps {options.step_ms:g} ms a step; batch {options.batch} of JPEGs of "
        f"500 x 375, {options.workers} workers"
    )
    with images(options.images, options.data) as root:
        options.data = root
        backends = usable(options)
        colds = {
            (source, target): [cold_in_process(options, source, target) for _ in range(options.cold_runs)]
            for source in backends
            for target in backends
            if source != target and "torchvision" in (source, target)
        }
        run = Run(options, backends)
        run.go()
    return show(run, colds, options)


def usable(options: argparse.Namespace) -> list[str]:
    """Return the engines to swap between: torchvision and DALI's.

    Raises:
        SystemExit: there is only one.
    """
    with_workers = dataloader(options.data, samples=options.batch, batch=options.batch, workers=0)
    states = switchable(with_workers).backends
    for name, state in states.items():
        if not state.available:
            print(f"{name} does not take part: {state.reason}")
    names = [name for name in ("torchvision", "dali-cpu", "dali-gpu") if states[name].available]
    if len(names) < 2:
        raise SystemExit("there is nothing to swap between")
    return names


def make(options: argparse.Namespace) -> SwitchableLoader:
    """Return a loader over one epoch that no run reaches the end of."""
    plain = dataloader(options.data, samples=10_000_000, batch=options.batch, workers=options.workers, replacement=True)
    return switchable(plain, name="benchmark", seed=0)


# -- the loop and the clicks ------------------------------------------------------------------------------------------


class Run:
    """A loop with all its swaps, and its measurements.

    Attributes:
        asked, got: s (monotonic), the times at which each step requested its batch and received it.
        memory: MB in use by this process and its workers after so many swaps.
        released: MB in use after `release()`.
    """

    def __init__(self, options: argparse.Namespace, backends: Sequence[str]) -> None:
        self.asked: list[float] = []
        self.got: list[float] = []
        self.memory: dict[int, float] = {}
        self.released = 0.0
        self._options = options
        self._backends = backends
        self._random = random.Random(options.seed)
        self._stop = threading.Event()
        self._problem: str | None = None
        self.loader = make(options)

    def go(self) -> None:
        """Run the loop until all swaps have taken place, then release.

        Raises:
            SystemExit: a swap did not take place, or a sample is not accounted for.
        """
        clicker = threading.Thread(target=self._click, daemon=True)
        for number, _ in enumerate(self._stepping()):
            if number == LEAD:
                clicker.start()
            if self._stop.is_set():
                break
        clicker.join()
        if self._problem is not None:
            raise SystemExit(self._problem)
        counts = self.loader.epochs()[-1]
        if counts["lost"] or counts["doubled"]:
            raise SystemExit(f"{counts['lost']} samples lost, {counts['doubled']} doubled")
        self.loader.release()
        time.sleep(0.5)
        self.released = memory_mb()

    def swaps(self) -> list[Swap]:
        """Return the swaps with their costs, oldest first."""
        steps = [after - before for before, after in zip(self.asked, self.asked[1:], strict=False)]
        normal = spread(steps)[0]
        found = []
        for switch in self.loader.history:
            first = bisect.bisect_right(self.asked, switch.asked) - 1  # the step in which it was clicked
            last = bisect.bisect_left(self.got, switch.first) + NEAR
            longest = max(steps[max(0, first) : last + 1])
            found.append(Swap(switch.source, switch.target, switch.first - switch.asked, longest - normal))
        return found

    def waits(self) -> tuple[float, float]:
        """Return the median and p95 of the waits for a batch, s."""
        waits = [got - asked for asked, got in zip(self.asked, self.got, strict=False)]
        return spread(waits)[0], percentile(waits, 0.95)

    def _stepping(self) -> Any:
        batches = iter(self.loader)
        while True:
            self.asked.append(time.monotonic())
            batch = next(batches)
            self.got.append(time.monotonic())
            yield batch
            time.sleep(self._options.step_ms / 1000)

    def _click(self) -> None:
        """Click, wait for the switch, wait for a random time, and repeat; a thread's function."""
        try:
            for number in range(1, self._options.swaps + 1):
                time.sleep(self._random.uniform(0.1, 0.5))
                self.loader.switch(self._random.choice([n for n in self._backends if n != self.loader.backend]))
                until = time.monotonic() + 60
                while len(self.loader.history) < number:
                    if time.monotonic() > until:
                        self._problem = f"swap {number} did not take place: {self.loader.switch_state.status}"
                        return
                    time.sleep(0.002)
                if number in (SETTLED, self._options.swaps) or number % 20 == 0:
                    # Not near a swap: to look takes some milliseconds of its own.
                    time.sleep((NEAR + 2) * self._options.step_ms / 1000 + 0.1)
                    self.memory[number] = memory_mb()
                    print(f"{number}/{self._options.swaps} swaps, {self.memory[number]:,.0f} MB", flush=True)
        finally:
            self._stop.set()


def memory_mb() -> float:
    """Return the MB in use by this process (resident) and by its workers (not shared)."""
    me = psutil.Process()
    workers = 0
    for child in me.children(recursive=True):
        try:
            workers += child.memory_full_info().uss
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return float((me.memory_info().rss + workers) / 1e6)


# -- cold -------------------------------------------------------------------------------------------------------------


def cold_swap(options: argparse.Namespace, source: str, target: str) -> dict[str, float]:
    """Return the first swap of this process: ms from the click to the first batch, and of stall."""
    run = Run(options, [])
    loader = run.loader
    before = 0
    if source != "torchvision":
        loader.switch(source)  # before the first iteration, which starts the workers and then this engine
    for number, _ in enumerate(run._stepping()):
        if number == LEAD:
            before = len(loader.history)
            loader.switch(target)
        if number > LEAD + NEAR and len(loader.history) > before and run.got[-1 - NEAR] >= loader.history[-1].first:
            break
        if number > LONGEST_S * 1000 / options.step_ms:
            raise SystemExit(f"{target} did not come: {loader.switch_state.status}")
    swap = run.swaps()[-1]
    loader.release()
    return {"click_ms": 1000 * swap.click, "stall_ms": 1000 * swap.stall}


def cold_in_process(options: argparse.Namespace, source: str, target: str) -> dict[str, float]:
    """Run `cold_swap` in a new process; return its figures."""
    command = [sys.executable, "-m", "benchmarks.swap", "--cold", source, target, f"--data={options.data}"]
    command += [
        f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("images", "batch", "workers", "step-ms")
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=LONGEST_S)
    if done.returncode:
        raise SystemExit(f"the cold swap from {source} to {target} failed")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- what is printed --------------------------------------------------------------------------------------------------


def show(run: Run, colds: dict[tuple[str, str], list[dict[str, float]]], options: argparse.Namespace) -> int:
    """Print the table and the bars."""
    swaps = run.swaps()[: options.timed]
    # The first towards each engine is cold: it was measured by itself.
    warm = [swap for number, swap in enumerate(swaps) if swap.target in {one.target for one in swaps[:number]}]
    median, tail = run.waits()
    print(
        f"\n{len(run.got):,} steps, {run.loader.epochs()[-1]['samples']:,} samples delivered, none lost or doubled; "
        f"wait for a batch {1000 * median:.1f} ms median, {1000 * tail:.1f} ms p95"
    )
    print(f"\n{'ms':30}{'swaps':>6}{'click p50':>11}{'p95':>7}{'max':>7}{'stall p50':>11}{'p95':>7}{'max':>7}", end="")
    print(f"{'cold click':>12}{'cold stall':>12}")
    counts = {"swaps": len(swaps), "steps": len(run.got), "samples delivered": run.loader.epochs()[-1]["samples"]}
    figures: dict[str, Any] = {"counts": counts, "wait_ms": {"p50": 1000 * median, "p95": 1000 * tail}}
    bars = []
    for source, target in sorted({(swap.source, swap.target) for swap in warm}, reverse=True):
        clicks = [1000 * swap.click for swap in warm if (swap.source, swap.target) == (source, target)]
        stalls = [1000 * swap.stall for swap in warm if (swap.source, swap.target) == (source, target)]
        name = f"{source} to {target}"
        print(f"{name:30}{len(clicks):6}", end="")
        for values, width in ((clicks, 11), (stalls, 11)):
            print(f"{spread(values)[0]:{width}.0f}{percentile(values, 0.95):7.0f}{max(values):7.0f}", end="")
        cold = colds.get((source, target), [])
        for figure in ("click_ms", "stall_ms"):
            print(f"{spread([one[figure] for one in cold])[0]:12.0f}" if cold else f"{'':12}", end="")
        print()
        figures[name] = {"click_ms": clicks, "stall_ms": stalls, "cold": cold}
        bars.append(Bar(f"{name}, stall p95", percentile(stalls, 0.95), options.step_ms, " ms", at_most=True))
        bars.append(Bar(f"{name}, click p95", percentile(clicks, 0.95), BAR_CLICK_MS, " ms", at_most=True))
    first, last = run.memory[SETTLED], run.memory[options.swaps]
    print(
        f"\nmemory: {first:,.0f} MB after {SETTLED} swaps, {last:,.0f} MB after {options.swaps}; "
        f"release() gave back {last - run.released:,.0f} MB, to {run.released:,.0f} MB\n"
    )
    figures["memory_mb"] = {"settled": first, "end": last, "released": run.released}
    bars.append(
        Bar(f"growth from {SETTLED} to {options.swaps} swaps", last - first, BAR_MEMORY_MB, " MB", at_most=True)
    )
    return report(bars, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
