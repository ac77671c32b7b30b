"""The monitor's cost for a training loop: images per second with and without it, in pairs.

    python -m benchmarks.overhead [--pairs 24] [--seconds 6] [--browser] [--json FILE]

A real notebook kernel trains a small network on JPEGs (one worker process, one torch thread: two cores are full) over a
plain DataLoader. In each pair the same number of steps runs once with the monitor on, which attaches to that loader and
records, and a receiving client in place of the browser, and once with the monitor off; which comes first alternates.
The ratio of the two rates is one figure; their median and its 95 % interval (bootstrap, 10,000 draws, fixed seed) are
printed. The CPU of the monitor's threads in the kernel is read from Linux' schedstat of each thread.

What attaching costs the loop itself is measured apart, where nothing else takes time: the thread's CPU time for each
batch of a DataLoader over tensors in memory, attached and plain in alternating epochs.

What timing the samples costs is the process's CPU time for samples that are timed, with the thread that looks at the
stack, and for the same ones that are not, in alternating pairs.

With --browser, `benchmarks.page` follows: the page's cost for the machine on which the browser runs.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .common import Bar, machine, report, spread, versions
from .notebook import Notebook, notebook
from .receiver import receiving

SETTLE_S = 1.5
STEP_MS = 20.0  # a short training step, of which the cost is given
DRAWS = 10_000
SAMPLES_TIMED, SAMPLE_PAIRS = 160, 24  # samples in each half of a pair, timed and not

SETUP = """
import itertools, os, threading, time
import torch
from kernel_monitor import monitor
from benchmarks.common import dataloader, images

torch.set_num_threads(1)
_folder = images(256, None)
root = _folder.__enter__()
loader = dataloader(root, samples=100_000, batch=16, workers=1, replacement=True)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(),
    torch.nn.Linear(128, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps):
    began, count = time.perf_counter(), 0
    for pictures, labels in itertools.islice(loader, steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
        count += len(labels)
    return count / (time.perf_counter() - began)

def thread_cpu():
    spent = {}
    for thread in threading.enumerate():
        if thread.name.startswith("kernel-monitor") or thread.name == "IOPub":
            with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
                spent[thread.name] = int(file.read().split()[0]) / 1e9
    return spent
"""
SEGMENT = """
before, began = thread_cpu(), time.monotonic()
rate = train({steps})
elapsed, after = time.monotonic() - began, thread_cpu()
result = (rate, elapsed, {{name: after[name] - before.get(name, 0.0) for name in after}})
"""


ATTACHED = """
from torch.utils.data import DataLoader, TensorDataset

memory = DataLoader(TensorDataset(torch.zeros(5000, 3, 8, 8), torch.arange(5000)), batch_size=1)

def batch_us():
    batches = iter(memory)
    next(batches)
    began, count = time.thread_time(), 0
    for _ in batches:
        count += 1
    return 1e6 * (time.thread_time() - began) / count

monitor.start()
attached, plain = [], []
for _ in range(10):
    monitor.configure(attach=False)
    plain.append(batch_us())
    monitor.configure(attach=True)
    attached.append(batch_us())
monitor.stop()
"""


SAMPLES = """
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from kernel_monitor.steps import sample_times

def samples_s(timed):
    fetcher = _MapDatasetFetcher(loader.dataset, True, loader.collate_fn, False)
    if timed:
        sample_times.look_at(sample_times.time_fetcher(fetcher, sample_times.Ring(bytearray(sample_times.RING))))
    began = time.process_time()
    for at in range(0, {samples}, 16):
        fetcher.fetch([number % 256 for number in range(at, at + 16)])
    spent = time.process_time() - began
    if sample_times._looks is not None:
        sample_times._looks.used = {{}}
        sample_times._looks.join()
    return spent

monitor.stop()
samples_s(True)
timed, untimed = [], []
for number in range({pairs}):
    for on in (True, False) if number % 2 == 0 else (False, True):
        (timed if on else untimed).append(samples_s(on))
"""


class Segment(NamedTuple):
    """A run of the loop: images/s, its seconds, and the CPU seconds of each of the monitor's threads."""

    rate: float
    seconds: float
    threads: dict[str, float]


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=6.0, help="about how long each half of a pair runs")
    parser.add_argument("--browser", action="store_true", help="then measure the page's own cost")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}")
    with (
        tempfile.TemporaryDirectory(prefix="kernel-monitor-benchmark-") as sessions,
        notebook(KERNEL_MONITOR_SESSIONS=sessions) as cells,
    ):
        pairs = measure(cells, options.pairs, options.seconds)
        cells.run(ATTACHED)
        attached, plain = cells.value("attached"), cells.value("plain")
        cells.run(SAMPLES.format(samples=SAMPLES_TIMED, pairs=SAMPLE_PAIRS))
        timed, untimed = cells.value("timed"), cells.value("untimed")
    ratios = [on.rate / off.rate for on, off in pairs]
    low, high = interval(ratios)
    on_rate, off_rate = (statistics.median(one.rate for one in half) for half in zip(*pairs, strict=True))
    median, lower, upper = spread(ratios)
    threads = shares([on for on, _ in pairs])
    print(
        f"\n{len(pairs)} pairs of about {options.seconds:g} s, medians: on {on_rate:.1f}, off {off_rate:.1f} images/s"
    )
    print(f"on / off: median {median:.4f}, 95 % interval {low:.4f} to {high:.4f}, quartiles {lower:.4f} to {upper:.4f}")
    steps_us = [with_us - without_us for with_us, without_us in zip(attached, plain, strict=True)]
    cost, least, most = spread(steps_us)
    print(
        f"a batch of an attached loader takes the loop's thread {spread(attached)[0]:.1f} us, of a plain one "
        f"{spread(plain)[0]:.1f} us: {cost:.1f} us more, quartiles {least:.1f} to {most:.1f}, in {len(steps_us)} epochs"
    )
    samples = [100 * (with_s / without_s - 1) for with_s, without_s in zip(timed, untimed, strict=True)]
    sample_cost, sample_least, sample_most = spread(samples)
    print(
        f"CPU of {SAMPLES_TIMED} samples of {1e3 * spread(untimed)[0] / SAMPLES_TIMED:.1f} ms, timed and not, in "
        f"{len(samples)} pairs: {sample_cost:.2f} % more, quartiles {sample_least:.2f} to {sample_most:.2f}"
    )
    ours = sum(share for name, share in threads.items() if name.startswith("kernel-monitor"))
    print("CPU of threads in the kernel, % of a core: " + ", ".join(f"{n} {s:.2f}" for n, s in sorted(threads.items())))
    status = report(
        [
            Bar("throughput with the monitor / without", median, 0.99),
            Bar("the monitor's threads in the kernel, % of a core", ours, 1.0, at_most=True),
            Bar("timing the samples, % of their CPU", sample_cost, 0.5, at_most=True),
            Bar(f"an attached loader, % of a step of {STEP_MS:g} ms", cost / STEP_MS / 10, 0.2, at_most=True),
        ],
        {
            "ratios": ratios,
            "interval": [low, high],
            "threads": threads,
            "attached_us": steps_us,
            "samples_percent": samples,
            "machine": machine(),
            "versions": versions(),
        },
        options.json,
    )
    if options.browser:
        print("\nthe page itself, where the browser runs:", flush=True)
        status |= subprocess.run([sys.executable, "-m", "benchmarks.page", "--seconds=30"], check=False).returncode
    return status


def measure(cells: Notebook, count: int, seconds: float) -> list[tuple[Segment, Segment]]:
    """Run the pairs; return (on, off) of each."""
    cells.run("%load_ext kernel_monitor")
    cells.run(SETUP)
    cells.run("train(20); rate = train(20)")
    steps = max(5, round(seconds * cells.value("rate") / 16))
    cells.run(f"train({steps})")
    pairs = []
    for number in range(count):
        halves: dict[bool, Segment] = {}
        for on in (True, False) if number % 2 == 0 else (False, True):
            halves[on] = segment(cells, steps, on=on)
        pairs.append((halves[True], halves[False]))
        ratio = halves[True].rate / halves[False].rate
        print(
            f"pair {number + 1:2}: on {halves[True].rate:7.1f}  off {halves[False].rate:7.1f} images/s  {ratio:.4f}",
            flush=True,
        )
    return pairs


def segment(cells: Notebook, steps: int, *, on: bool) -> Segment:
    """Run one half of a pair. If the monitor is on, a client receives its frames, and must have got some."""
    if not on:
        cells.run("monitor.stop()")
        time.sleep(SETTLE_S)
        cells.run(SEGMENT.format(steps=steps))
        return Segment(*cells.value("result"))
    cells.run("monitor.start()")
    with receiving(cells.connection_file) as receiver:
        time.sleep(SETTLE_S)
        cells.run(SEGMENT.format(steps=steps))
        found = Segment(*cells.value("result"))
        received = receiver.finish()
    if received.frames < 5 * found.seconds:
        raise SystemExit(f"the client received only {received.frames} frames in {found.seconds:.1f} s")
    return found


def shares(segments: Sequence[Segment]) -> dict[str, float]:
    """Return each thread's share of a core over all segments, in per cent."""
    total = sum(one.seconds for one in segments)
    names = {name for one in segments for name in one.threads}
    return {name: 100 * sum(one.threads.get(name, 0.0) for one in segments) / total for name in names}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by the percentile bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    return medians[round(0.025 * DRAWS)], medians[round(0.975 * DRAWS) - 1]


if __name__ == "__main__":
    sys.exit(main())
