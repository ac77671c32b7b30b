"""A machine with GPUs for those that have none: pynvml's functions answer from a table, errors are pynvml's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

pynvml: Any = import_module("pynvml")

GIB = 1 << 30


@dataclass
class FakeGpu:
    """One GPU. An entry of `errors` (by the name of pynvml's function) is an NVML error code that it raises.

    Attributes:
        delay: seconds that each question takes.
        asked: how often each function was called.
    """

    name: str = "NVIDIA H200"
    utilisation: int = 37
    used: int = 30 * GIB
    total: int = 120 * GIB
    power_mw: int = 350_000
    limit_mw: int = 700_000
    temperature: int = 61
    errors: dict[str, int] = field(default_factory=dict)
    delay: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)


@contextmanager
def nvml(gpus: list[FakeGpu], *, init_error: int | None = None, init_delay: float = 0.0) -> Iterator[None]:
    """Have pynvml answer for these GPUs meanwhile."""

    def answer(function: str, value: Callable[[FakeGpu], Any]) -> Callable[..., Any]:
        def call(handle: FakeGpu, *_: Any) -> Any:
            handle.asked[function] = handle.asked.get(function, 0) + 1
            time.sleep(handle.delay)
            if function in handle.errors:
                raise pynvml.NVMLError(handle.errors[function])
            return value(handle)

        return call

    def init() -> None:
        time.sleep(init_delay)
        if init_error is not None:
            raise pynvml.NVMLError(init_error)

    def handle_of(index: int) -> FakeGpu:
        if "nvmlDeviceGetHandleByIndex" in gpus[index].errors:
            raise pynvml.NVMLError(gpus[index].errors["nvmlDeviceGetHandleByIndex"])
        return gpus[index]

    values: dict[str, Callable[[FakeGpu], Any]] = {
        "nvmlDeviceGetName": lambda gpu: gpu.name,
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu.utilisation, memory=1),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(
            total=gpu.total, used=gpu.used, free=gpu.total - gpu.used
        ),
        "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.limit_mw,
        "nvmlDeviceGetTemperature": lambda gpu: gpu.temperature,
        "nvmlDeviceGetTemperatureV": lambda gpu: gpu.temperature,
    }
    replaced: dict[str, Callable[..., Any]] = {name: answer(name, value) for name, value in values.items()}
    replaced |= {
        "nvmlInit": init,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": handle_of,
    }
    before = {name: getattr(pynvml, name) for name in replaced}
    for name, function in replaced.items():
        setattr(pynvml, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(pynvml, name, function)
