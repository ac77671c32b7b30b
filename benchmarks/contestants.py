"""The samplers that `benchmarks.sampler` compares: functions that run one for a while and return a `Window`."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from unittest import mock

from kernel_monitor.sample.probe import LINUX

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

SETTLE_S = 2.0


class Window(NamedTuple):
    """A sampler's run: its stamps (s, monotonic), its share of a core (per cent), the series in each sample."""

    stamps: list[float]
    cpu: float
    series: int = 0


def kernel_monitor(interval: float, seconds: float, *, as_usual: bool = False) -> Window:
    """Run this project's sampler process, recording, and read it as a notebook kernel does."""
    from kernel_monitor.sample.sampler_client import SamplerClient

    stamps: list[float] = []
    reader_cpu: list[float] = []
    series: list[int] = []

    def on_frame(stamp: float, _missed: int, values: array[float]) -> None:
        stamps.append(stamp)
        reader_cpu.append(time.thread_time())
        series.append(len(values))

    def fail(what: object) -> NoReturn:
        raise SystemExit(f"the sampler did not run through: {what}")

    ends: list[str] = []
    notices: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-benchmark-") as folder:
        record = Path(folder, "benchmark.kmsession")
        client = SamplerClient(
            interval, lambda _: None, on_frame, notices.append, ends.append, session="benchmark", record=record
        )
        client.start()
        try:
            wait_for(lambda: len(stamps) > SETTLE_S / interval, "kernel_monitor")
            if client.pid is None:
                fail(ends)
            if as_usual and hasattr(os, "sched_setscheduler"):
                os.sched_setscheduler(client.pid, os.SCHED_OTHER, os.sched_param(0))
            first, before, began = len(stamps), cpu_seconds(client.pid), time.monotonic()
            time.sleep(seconds)
            spent, elapsed = cpu_seconds(client.pid) - before, time.monotonic() - began
            last = len(stamps)
            reader = reader_cpu[last - 1] - reader_cpu[first]
        finally:
            client.stop()
        states = [notice["state"] for notice in notices if notice.get("kind") == "recorder"]
        if ends or states[:1] != ["recording"] or "stopped" in states:
            fail([*ends, *notices])
    return Window(stamps[first:last], 100 * (spent + reader) / elapsed, series[-1])


def usual_priority(interval: float, seconds: float) -> Window:
    return kernel_monitor(interval, seconds, as_usual=True)


def simulated(interval: float, seconds: float) -> Window:
    """Run the sampler process on a simulated host; the CPU time of the simulation does not count."""
    from .fakehost import simulation

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-monitor-benchmark-"))
        stack.enter_context(mock.patch.dict(os.environ, stack.enter_context(simulation(Path(folder)))))
        return kernel_monitor(interval, seconds)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; on Linux by its own clock, which is finer than the ticks of /proc."""
    if LINUX:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3) makes the clock's number so
    import psutil

    return sum(psutil.Process(pid).cpu_times()[:2])


def psutil_thread(interval: float, seconds: float) -> Window:
    """Run a thread of this process that reads the same with psutil: the load each time, the rest twice a second."""
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
    """Run nvitop's `ResourceMetricCollector` with its own background thread on the machine's GPUs."""
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


def watch(marks: list[float], interval: float, seconds: float, name: str) -> tuple[int, int, float]:
    """Let a sampler settle, then run; return the first and the last of its marks, and the seconds between them."""
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
    """Return why no GPU is sampled; None if some are."""
    from kernel_monitor.sample.gpu.nvml import NvmlError, open_devices

    try:
        open_devices()
    except NvmlError as error:
        return str(error)
    return None
