"""What NVML tells about each GPU: one small function per call, and NVML's own words where it tells nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from .probe import NAN

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SERIES = (
    ("utilisation", "%"),
    ("memory", "%"),
    ("power", "%"),
    ("temperature", "°C"),
    ("memory_used", "B"),
    ("power_draw", "W"),
)
"""(last part of the series' name, unit) of every GPU, in order."""

Answer = float | str
"""A value, or why there is none."""

LIMIT_PERIOD_S = 10.0
"""How often the power limit is read again."""


class NvmlError(Exception):
    """There is no GPU to ask; the message says why, in NVML's words where it has any."""


@dataclass
class Device:
    """One GPU.

    Attributes:
        index: NVML's index.
        name: the product's name.
        memory_total: bytes, or None where NVML does not tell.
        nvml: the module pynvml.
        handle: NVML's handle; None if it gave none, then `lost` says why.
        lost: why there is no handle.
        limit: the enforced power limit in W, or why there is none.
    """

    index: int
    name: str
    memory_total: int | None
    nvml: ModuleType
    handle: Any
    lost: str = ""
    limit: Answer = NAN
    limit_due: float = 0.0


class Reading(NamedTuple):
    """One question to NVML: the parts that it answers, how often it is asked (s), and how."""

    parts: tuple[str, ...]
    period: float
    ask: Callable[[Device], tuple[Answer, ...]]


def open_devices() -> list[Device]:
    """Start NVML and list its GPUs.

    Raises:
        NvmlError: no library, no driver, or no GPU.
    """
    try:
        pynvml = import_module("pynvml")
    except ImportError as error:
        raise NvmlError(f"{error}; the package nvidia-ml-py provides it") from error
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise NvmlError(str(error)) from error
    if count == 0:
        raise NvmlError("NVML lists no GPU")
    return [_open(pynvml, index) for index in range(count)]


def _open(nvml: ModuleType, index: int) -> Device:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return Device(index, f"GPU {index}", None, nvml, None, lost=str(error))
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        name = f"GPU {index} (no name: {error})"
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None  # the reading of the memory gives the reason
    return Device(index, name.decode() if isinstance(name, bytes) else name, total, nvml, handle)


def _utilisation(device: Device) -> tuple[Answer, ...]:
    return (float(device.nvml.nvmlDeviceGetUtilizationRates(device.handle).gpu),)


def _memory(device: Device) -> tuple[Answer, ...]:
    memory = device.nvml.nvmlDeviceGetMemoryInfo(device.handle)
    return 100.0 * memory.used / memory.total, float(memory.used)


def _power(device: Device) -> tuple[Answer, ...]:
    draw = device.nvml.nvmlDeviceGetPowerUsage(device.handle) / 1000.0
    now = time.monotonic()
    if now >= device.limit_due:
        device.limit_due = now + LIMIT_PERIOD_S
        try:
            device.limit = device.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle) / 1000.0
        except device.nvml.NVMLError as error:
            device.limit = f"power limit: {error}"
    if isinstance(device.limit, str):
        return device.limit, draw
    return (100.0 * draw / device.limit if device.limit > 0 else "power limit: 0 W"), draw


def _temperature(device: Device) -> tuple[Answer, ...]:
    nvml = device.nvml
    try:
        degrees = nvml.nvmlDeviceGetTemperature(device.handle, nvml.NVML_TEMPERATURE_GPU)
    except nvml.NVMLError_FunctionNotFound:  # announced for CUDA 14; its successor is unknown to older drivers
        degrees = nvml.nvmlDeviceGetTemperatureV(device.handle, nvml.NVML_TEMPERATURE_GPU)
    return (float(degrees),)


READINGS = (
    Reading(("utilisation",), 0.0, _utilisation),
    Reading(("memory", "memory_used"), 0.0, _memory),
    Reading(("power", "power_draw"), 0.0, _power),
    Reading(("temperature",), 1.0, _temperature),
)
"""Every question. A period of 0 is every round."""


def ask(reading: Reading, device: Device) -> tuple[Answer, ...]:
    """The answers to `reading`, one per part: values, or NVML's words why there is none."""
    if device.handle is None:
        return (device.lost,) * len(reading.parts)
    try:
        return reading.ask(device)
    except device.nvml.NVMLError as error:
        return (str(error),) * len(reading.parts)
