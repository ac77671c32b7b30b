"""How steadily, and at which cost, a machine is sampled from inside a busy notebook kernel.

    python -m benchmarks.sampler [--seconds 20] [--runs 3] [--interval 0.1]

This process plays the kernel: two threads compute in pure Python and never let go of the GIL by themselves, from the
first sampler to the last. Beside them runs one sampler at a time, each for the same time: this project's process, a
thread with psutil, and nvitop's collector. A bare timer, a process that sleeps to each deadline and does nothing else,
runs along with every one of them and shows what the machine itself allows.

An interval is the difference of two samples' own `time.monotonic()` stamps. CPU is the share of one core: for this
project the sampler process and the thread that reads it, for the others their thread.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

SPINNERS = 2
SETTLE_S = 1.0
BAR_P99_MS = 101.0
BAR_CPU = 1.0


class Window(NamedTuple):
    """What one sampler did: its stamps (s, monotonic) and the share of one core that it took (per cent)."""

    stamps: list[float]
    cpu: float


class Row(NamedTuple):
    """Intervals in ms, CPU in per cent of one core."""

    p50: float
    p99: float
    longest: float
    cpu: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each sampler runs in each run")
    parser.add_argument("--runs", type=int, default=3, help="how often all is repeated; medians are printed")
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("--bare-timer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare_timer:
        bare_timer(options.interval)
        return

    contestants: dict[str, Callable[[float, float], Window]] = {
        "kernel_monitor": kernel_monitor,
        # As it runs for a user who may not have a real-time priority (see kernel_monitor/sample/priority.py).
        "kernel_monitor, usual priority": partial(kernel_monitor, usual_priority=True),
        "psutil thread": psutil_thread,
        "nvitop collector": nvitop_collector,
    }
    print(f"{machine()}\n{versions()}")
    if not real_time_permitted():
        print("this user may not have a real-time priority: both rows of kernel_monitor have the usual one")
    print(
        f"{options.runs} run(s); in each, every sampler for {options.seconds:g} s at {1 / options.interval:g} Hz, "
        f"beside {SPINNERS} threads of pure Python in the same process\n"
    )
    rows: dict[str, list[Row]] = {}
    for number in range(1, options.runs + 1):
        with spinning():
            for name, measure in contestants.items():
                with timer_process(options.interval) as finish:
                    window = measure(options.interval, options.seconds)
                    timer = finish()
                rows.setdefault(name, []).append(summarise(window))
                rows.setdefault(f"  bare timer beside {name}", []).append(summarise(timer))
                print(f"run {number}  {line(name, rows[name][-1])}", flush=True)
    print(f"\nmedian of {options.runs} run(s)")
    print(f"{'':38}{'p50':>9}{'p99':>9}{'max':>9} ms {'CPU':>8}")
    medians = {name: Row(*map(statistics.median, zip(*found, strict=True))) for name, found in rows.items()}
    for name, row in medians.items():
        print(line(name, row))
    ours = medians["kernel_monitor"]
    if options.interval == 0.1:
        met = ours.p99 <= BAR_P99_MS and ours.cpu <= BAR_CPU
        print(
            f"\n{'met' if met else 'MISSED'}: kernel_monitor's p99 {ours.p99:.2f} ms (at most {BAR_P99_MS:g}), "
            f"CPU {ours.cpu:.2f} % of one core (at most {BAR_CPU:g}); "
            f"the bare timer's p99 at the same time {medians['  bare timer beside kernel_monitor'].p99:.2f} ms"
        )


def real_time_permitted() -> bool:
    """Whether the system gives this user the sampler's real-time priority; tried in a process of its own."""
    code = "import sys; from kernel_monitor.sample.priority import *; sys.exit(not ask_for_punctuality())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def line(name: str, row: Row) -> str:
    return f"{name:38}{row.p50:9.2f}{row.p99:9.2f}{row.longest:9.2f} ms {row.cpu:6.2f} %"


def summarise(window: Window) -> Row:
    """Percentiles by the nearest rank, so that each is an interval that occurred."""
    intervals = sorted(1e3 * (b - a) for a, b in zip(window.stamps, window.stamps[1:], strict=False))
    if len(intervals) < 2:
        raise SystemExit(f"only {len(window.stamps)} samples came: nothing to compare")

    def rank(share: float) -> float:
        return intervals[math.ceil(share * len(intervals)) - 1]

    return Row(rank(0.5), rank(0.99), intervals[-1], window.cpu)


# -- the samplers -----------------------------------------------------------------------------------------------------


def kernel_monitor(interval: float, seconds: float, *, usual_priority: bool = False) -> Window:
    """This project's sampler process, read as a notebook kernel reads it."""
    import psutil

    from kernel_monitor.sample.client import SamplerClient

    stamps: list[float] = []
    reader_cpu: list[float] = []

    def on_frame(stamp: float, _missed: int, _values: array[float]) -> None:
        stamps.append(stamp)
        reader_cpu.append(time.thread_time())

    def fail(what: object) -> NoReturn:
        raise SystemExit(f"the sampler did not run through: {what}")

    problems: list[object] = []
    client = SamplerClient(interval, lambda _hello: None, on_frame, problems.append, problems.append)
    client.start()
    try:
        wait_for(lambda: len(stamps) > SETTLE_S / interval, "kernel_monitor")
        if client.pid is None:
            fail(problems)
        if usual_priority and hasattr(os, "sched_setscheduler"):
            os.sched_setscheduler(client.pid, os.SCHED_OTHER, os.sched_param(0))
        process = psutil.Process(client.pid)
        first, before, began = len(stamps), sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        spent, elapsed = sum(process.cpu_times()[:2]) - before, time.monotonic() - began
        last = len(stamps)
        reader = reader_cpu[last - 1] - reader_cpu[first]
    finally:
        client.stop()
    if problems:
        fail(problems)
    return Window(stamps[first:last], 100 * (spent + reader) / elapsed)


def psutil_thread(interval: float, seconds: float) -> Window:
    """A thread of this process that reads the same with psutil: load each time, the rest twice a second."""
    import psutil

    stop = threading.Event()
    stamps: list[float] = []
    cpu: list[float] = []

    def sample() -> None:
        start = time.monotonic()
        every = max(1, round(0.5 / interval))
        tick = 0
        while not stop.is_set():
            tick = max(tick + 1, math.ceil((time.monotonic() - start) / interval))  # skip what was missed
            time.sleep(max(0.0, start + tick * interval - time.monotonic()))
            stamps.append(time.monotonic())
            psutil.cpu_times_percent(percpu=True)
            if tick % every == 0:
                psutil.virtual_memory()
                psutil.disk_io_counters()
                psutil.net_io_counters()
            cpu.append(time.thread_time())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    first, last, elapsed = watch(stamps, interval, seconds, "the psutil thread")
    stop.set()
    thread.join()
    return Window(stamps[first:last], 100 * (cpu[last - 1] - cpu[first]) / elapsed)


def nvitop_collector(interval: float, seconds: float) -> Window:
    """nvitop's `ResourceMetricCollector` with its own background thread, over the GPUs there are."""
    nvitop: Any = import_module("nvitop")
    stamps: list[float] = []
    cpu: list[float] = []
    stop = threading.Event()

    def on_collect(_metrics: dict[str, float]) -> bool:
        cpu.append(time.thread_time())
        return not stop.is_set()

    devices = nvitop.Device.all() if gpu_reason() is None else []
    collector = nvitop.ResourceMetricCollector(devices, root_pids={os.getpid()}, interval=interval)
    take_snapshots = collector.take_snapshots

    def stamped() -> Any:
        stamps.append(time.monotonic())
        return take_snapshots()

    collector.take_snapshots = stamped
    thread = collector.daemonize(on_collect, interval)
    first, last, elapsed = watch(cpu, interval, seconds, "nvitop's collector")
    stop.set()
    thread.join()
    return Window(stamps[first:last], 100 * (cpu[last - 1] - cpu[first]) / elapsed)


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


# -- what they have in common -----------------------------------------------------------------------------------------


@contextmanager
def spinning() -> Iterator[None]:
    """Threads that compute in pure Python meanwhile."""
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
        [sys.executable, "-m", "benchmarks.sampler", "--bare-timer", f"--interval={interval!r}"],
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


def watch(marks: list[float], interval: float, seconds: float, name: str) -> tuple[int, int, float]:
    """Let a sampler settle, then run; returns the first and the last of its marks, and the seconds between."""
    wait_for(lambda: len(marks) > SETTLE_S / interval, name)
    first, began = len(marks), time.monotonic()
    time.sleep(seconds)
    return first, len(marks), time.monotonic() - began


def wait_for(ready: Callable[[], bool], name: str) -> None:
    until = time.monotonic() + 30
    while not ready():
        if time.monotonic() > until:
            raise SystemExit(f"{name} brought no samples within 30 s")
        time.sleep(0.05)


def gpu_reason() -> str | None:
    """Why no GPU is asked; None if some are."""
    from kernel_monitor.sample.nvml import NvmlError, open_devices

    try:
        open_devices()
    except NvmlError as error:
        return str(error)
    return None


def machine() -> str:
    from kernel_monitor.sample import host

    facts = host.facts()
    reason = gpu_reason()
    gpus = "GPUs are asked" if reason is None else f"no GPU ({reason})"
    return f"{facts['cpu_model']}, {facts['logical_cpus']} logical cores, {platform.platform()}, {gpus}"


def versions() -> str:
    packages = "  ".join(f"{name} {metadata.version(name)}" for name in ("psutil", "nvidia-ml-py", "nvitop"))
    from kernel_monitor import __version__

    return f"kernel_monitor {__version__}  Python {platform.python_version()}  {packages}"


if __name__ == "__main__":
    main()
