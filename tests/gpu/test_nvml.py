"""What NVML tells about real GPUs: a row for each metric, and how long each call takes."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from benchmarks import metrics
from kernel_monitor.sample.gpu.gpus import Gpus, NvmlSession
from kernel_monitor.sample.gpu.nvml import open_devices

pynvml: Any = import_module("pynvml")
SECONDS = 6.0


@contextmanager
def at_work() -> Iterator[None]:
    """Have the first GPU multiply matrices meanwhile, and move some over the bus."""
    done = threading.Event()

    def work() -> None:
        left = torch.ones(4096, 4096, device="cuda:0", dtype=torch.float16)
        host = torch.ones(64 << 20, dtype=torch.uint8).pin_memory()
        while not done.is_set():
            for _ in range(10):
                left @ left
            host.to("cuda:0", non_blocking=True)
            torch.cuda.synchronize(0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_one_row_for_each_metric() -> None:
    """Every metric has a value, or a reason; those of load are not zero while the GPU works."""
    probe = Gpus(0.1)
    probe.start()
    probe.set_processes([os.getpid()])
    seen: dict[str, list[float]] = {}
    with at_work():
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(0.1)
            now = time.monotonic()
            probe.refresh(now)
            for (name, _), value in zip(probe.series, probe.read(), strict=True):
                seen.setdefault(name, []).append(value)
        hello, groups = probe.hello(), probe.groups(time.monotonic())
    probe.stop()
    assert hello["gpu_reason"] is None
    for gpu in hello["gpus"]:
        print(f"GPU {gpu['index']}: {gpu['name']}, throttle {gpu['throttle']}, MIG {gpu['mig']}")
        for name, unit in probe.series:
            _, index, part = name.split("/", 2)
            if index != str(gpu["index"]):
                continue
            values = [value for value in seen[name] if math.isfinite(value)]
            reason = gpu["reasons"].get(part)
            if values:
                print(f"  {part:22} {values[-1]:18,.2f} {unit:4} of {min(values):,.2f} to {max(values):,.2f}")
            else:
                print(f"  {part:22} {reason}")
            assert values or reason, name
            assert metrics.matching(name), name
    for group, age, window in groups:
        print(f"{group}: {age:.3f} s old, covers {window:.3f} s")
        assert age < 5, group
    busy = hello["gpus"][0]
    for part in ("utilisation", "memory_used", "power_draw", "temperature", "clock_sm", "process_memory"):
        if part not in busy["reasons"]:
            assert max(value for value in seen[f"gpu/0/{part}"] if math.isfinite(value)) > 0, part


def test_how_long_each_call_takes() -> None:
    """Prints a table, for `benchmarks/nvml/latencies.py`; only that every call comes back is asserted."""
    took: dict[str, list[float]] = {}
    wrapped: dict[str, Callable[..., Any]] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                took.setdefault(name, []).append(time.perf_counter() - began)

        return call

    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceGet", "nvmlGpm", "nvmlInit", "nvmlShutdown")) and name[-3:-1] != "_v":
            wrapped[name] = getattr(pynvml, name)
            setattr(pynvml, name, timed(name, wrapped[name]))
    try:
        session = NvmlSession(open_devices(), 0.1, frozenset([os.getpid()]), print)
        with at_work():
            for _ in range(20):
                for asker in session.threads:
                    for desk in asker.tables:
                        for question in desk.queries:
                            question.due = 0.0
                        desk.ask(time.monotonic())
                time.sleep(0.2)
        session.close()
    finally:
        for name, function in wrapped.items():
            setattr(pynvml, name, function)
    print(torch.cuda.get_device_name(0))
    for name, times in sorted(took.items(), key=lambda item: -statistics.median(item[1])):
        median, most = 1e6 * statistics.median(times), 1e6 * max(times)
        print(f"  {name:45} {len(times):5} calls, median {median:9.1f} µs, most {most:9.1f} µs")
    assert took["nvmlDeviceGetMemoryInfo"]
