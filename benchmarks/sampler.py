"""A comparison of samplers beside a busy notebook kernel: the steadiness of their intervals, and their CPU.

    python -m benchmarks.sampler [--seconds 20] [--runs 3] [--only NAME…]

This process stands for the kernel: two threads compute in pure Python and never release the GIL by themselves, from the
first sampler to the last. Beside them runs one sampler at a time, each for the same time: this project's process with
every metric on and the flight recorder running, at 10 and 20 Hz, at the usual priority, and on a simulated host of 256
cores and 8 GPUs (`benchmarks/fakehost.py`, `benchmarks/nvml`); a thread with psutil; nvitop's collector. With each of
them runs a bare timer, a process that only sleeps to each deadline; it shows the limits of the machine itself.

An interval is the difference of two samples' own `time.monotonic()` stamps; its error is the difference from the
nominal interval. CPU is the share of a core: for this project, of the sampler process with all its threads and the
thread that reads it; for the others, of their thread.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from .contestants import (
    SETTLE_S,
    Window,
    gpu_reason,
    kernel_monitor,
    nvitop_collector,
    psutil_thread,
    simulated,
    usual_priority,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPINNERS = 2
BAR_ERROR_MS = 1.0
BAR_CPU = 1.5
BAR_CPU_SIMULATED = 3.0


class Row(NamedTuple):
    """The figures of a sampler: interval errors in ms, samples missed and CPU in per cent, number of series."""

    p50: float
    p99: float
    longest: float
    missed: float
    cpu: float
    series: float


class Contestant(NamedTuple):
    """A sampler, its interval in seconds, and its bars: p99 of the error in ms, CPU in per cent."""

    measure: Callable[[float, float], Window]
    interval: float = 0.1
    bar_error: float | None = None
    bar_cpu: float | None = None


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    contestants = {
        "kernel_monitor": Contestant(kernel_monitor, 0.1, BAR_ERROR_MS, BAR_CPU),
        "kernel_monitor, 20 Hz": Contestant(kernel_monitor, 0.05, BAR_ERROR_MS),
        # As it runs for a user who may not have a real-time priority (see kernel_monitor/os_process.py).
        "kernel_monitor, usual priority": Contestant(usual_priority),
        "kernel_monitor, 256 cores, 8 GPUs": Contestant(simulated, 0.1, None, BAR_CPU_SIMULATED),
        "psutil thread": Contestant(psutil_thread),
        "nvitop collector": Contestant(nvitop_collector),
    }
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each sampler runs in each run")
    parser.add_argument("--runs", type=int, default=3, help="how often all is repeated; medians are printed")
    parser.add_argument("--only", nargs="+", choices=contestants, metavar="NAME", help=f"of {', '.join(contestants)}")
    parser.add_argument("--bare-timer", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare_timer is not None:
        bare_timer(options.bare_timer)
        return 0

    chosen = {name: one for name, one in contestants.items() if not options.only or name in options.only}
    print(f"{machine()}\n{versions()}")
    if not real_time_permitted():
        print("this user may not have a real-time priority: all rows of kernel_monitor have the usual one")
    print(
        f"{options.runs} run(s); in each, every sampler for {options.seconds:g} s, "
        f"beside {SPINNERS} threads of pure Python in the same process\n"
    )
    rows: dict[str, list[Row]] = {}
    for number in range(1, options.runs + 1):
        with spinning():
            for name, one in chosen.items():
                with timer_process(one.interval) as finish:
                    window = one.measure(one.interval, options.seconds)
                    timer = finish()
                rows.setdefault(name, []).append(summarise(window, one.interval))
                rows.setdefault(f"  bare timer beside it, {name}", []).append(summarise(timer, one.interval))
                print(f"run {number}  {line(name, rows[name][-1])}", flush=True)
    print(f"\nmedian of {options.runs} run(s); error of the interval")
    print(f"{'':36}{'p50':>9}{'p99':>9}{'max':>9} ms {'missed':>7} {'CPU':>9} {'series':>7}")
    medians = {name: Row(*map(statistics.median, zip(*found, strict=True))) for name, found in rows.items()}
    for name, row in medians.items():
        print(line("  bare timer beside it" if name.startswith("  ") else name, row))
    print()
    missed = 0
    for name, one in chosen.items():
        beside = medians[f"  bare timer beside it, {name}"].p99
        for what, value, bar in (
            (f"p99 of the interval's error, ms (the bare timer's: {beside:.2f})", medians[name].p99, one.bar_error),
            ("CPU, % of one core", medians[name].cpu, one.bar_cpu),
        ):
            if bar is not None:
                missed += value > bar
                print(f"{'met   ' if value <= bar else 'MISSED'}  {name}: {what}: {value:.2f} (at most {bar:g})")
    return min(missed, 1)


def real_time_permitted() -> bool:
    """Return whether the system grants this user the sampler's real-time priority; a new process tries it."""
    code = "import sys; from kernel_monitor.os_process import *; sys.exit(not request_realtime())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def line(name: str, row: Row) -> str:
    return (
        f"{name:36}{row.p50:9.2f}{row.p99:9.2f}{row.longest:9.2f} ms {row.missed:6.2f}% {row.cpu:7.2f} % "
        f"{row.series or '':>7}"
    )


def summarise(window: Window, nominal: float) -> Row:
    """Return the figures of a run, with percentiles by the nearest rank."""
    intervals = [b - a for a, b in zip(window.stamps, window.stamps[1:], strict=False)]
    errors = sorted(1e3 * abs(interval - nominal) for interval in intervals)
    if len(errors) < 2:
        raise SystemExit(f"only {len(window.stamps)} samples came: nothing to compare")

    def rank(share: float) -> float:
        return errors[math.ceil(share * len(errors)) - 1]

    due = sum(max(1, round(interval / nominal)) for interval in intervals)
    missed = 100 * (due - len(intervals)) / due
    return Row(rank(0.5), rank(0.99), errors[-1], missed, window.cpu, window.series)


# -- what they have in common ---------------------------------------------------------------------------------------


def bare_timer(interval: float) -> None:
    """Sleep to each deadline until stdin ends, then print the stamps and the CPU time as JSON."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    stamps: list[float] = []
    before, start = time.process_time(), time.monotonic()
    tick = 0
    while not ended.is_set():
        tick += 1
        time.sleep(max(0.0, start + tick * interval - time.monotonic()))
        stamps.append(time.monotonic())
    cpu = 100 * (time.process_time() - before) / (time.monotonic() - start)
    print(json.dumps({"stamps": stamps, "cpu": cpu}))


@contextmanager
def spinning() -> Iterator[None]:
    """Run threads that compute in pure Python during the block."""
    stop = False

    def spin() -> None:
        number = 0
        while not stop:
            number = (number * 1103515245 + 12345) % 2147483648

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(SPINNERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop = True
        for thread in threads:
            thread.join()


@contextmanager
def timer_process(interval: float) -> Iterator[Callable[[], Window]]:
    """A bare timer in a process of its own; what is yielded ends it and gives its window."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sampler", f"--bare-timer={interval!r}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def finish() -> Window:
        output, _ = process.communicate()
        found = json.loads(output)
        settled = round(SETTLE_S / interval)
        return Window(found["stamps"][settled:], found["cpu"])

    try:
        yield finish
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def machine() -> str:
    from kernel_monitor.sample.host.cpu import host_facts

    facts = host_facts()
    reason = gpu_reason()
    gpus = "GPUs are asked" if reason is None else f"no GPU ({reason})"
    return f"{facts['cpu_model']}, {facts['logical_cpus']} logical cores, {platform.platform()}, {gpus}"


def versions() -> str:
    packages = "  ".join(f"{name} {metadata.version(name)}" for name in ("psutil", "nvidia-ml-py", "nvitop"))
    from kernel_monitor import __version__

    return f"kernel_monitor {__version__}  Python {platform.python_version()}  {packages}"


if __name__ == "__main__":
    sys.exit(main())
