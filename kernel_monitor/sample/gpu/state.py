"""What moves slowly: engines, temperatures, clocks and what lowers them, memory errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .load import power_limit
from .nvml import Answer, Device, Question

if TYPE_CHECKING:
    from collections.abc import Sequence

HARMFUL = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Clock event reasons (nvml.h: nvmlClocksEventReason…) by which a GPU is slower than it could be. Not among them: an
idle GPU, clocks that a person set, a display's or another GPU's clock."""

LINGER_S = 60.0
"""How long a reason is still named: one that comes and goes must not change what is said about the GPU each second."""


class Engine(Question):
    """Share of time in which a fixed-function engine worked, over the sampling period that NVML tells with it."""

    group = "gpu-slow"

    def __init__(self, device: Device, part: str, function: str) -> None:
        super().__init__(device, ((part, "%"),))
        self._function = function

    def ask(self, _now: float) -> Sequence[Answer]:
        busy, period_us = getattr(self.device.nvml, self._function)(self.device.handle)
        self.window = period_us / 1e6
        return (float(busy),)


class Temperature(Question):
    """Of the GPU itself."""

    group = "gpu-slow"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("temperature", "°C"),))

    def ask(self, _now: float) -> Sequence[Answer]:
        nvml = self.device.nvml
        try:
            degrees = nvml.nvmlDeviceGetTemperature(self.device.handle, nvml.NVML_TEMPERATURE_GPU)
        except nvml.NVMLError_FunctionNotFound:  # announced for CUDA 14; its successor is unknown to older drivers
            degrees = nvml.nvmlDeviceGetTemperatureV(self.device.handle, nvml.NVML_TEMPERATURE_GPU)
        return (float(degrees),)


class Clock(Question):
    """One of the clocks."""

    group = "gpu-slow"

    def __init__(self, device: Device, part: str, kind: int) -> None:
        super().__init__(device, ((part, "MHz"),))
        self._kind = kind

    def ask(self, _now: float) -> Sequence[Answer]:
        return (float(self.device.nvml.nvmlDeviceGetClockInfo(self.device.handle, self._kind)),)


class PowerLimit(Question):
    """The enforced limit: the lowest of those that people and the system set."""

    group = "gpu-slow"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("power_limit", "W"),))

    def ask(self, _now: float) -> Sequence[Answer]:
        return (power_limit(self.device),)


class Throttle(Question):
    """Whether a harmful reason lowers the clocks now; which, goes to the hello."""

    group = "gpu-slow"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("throttled", "%"),))
        nvml: Any = device.nvml
        # Named so since pynvml 12.535; the older name is announced to go with CUDA 14.
        self._names = [
            name
            for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            if hasattr(nvml, name)
        ]
        self._last_seen: dict[int, float] = {}

    def ask(self, now: float) -> Sequence[Answer]:
        active = self._reasons()
        for bit in HARMFUL:
            if active & bit:
                self._last_seen[bit] = now
        self.device.throttle = tuple(
            words for bit, words in HARMFUL.items() if now - self._last_seen.get(bit, float("-inf")) < LINGER_S
        )
        return (100.0 if any(active & bit for bit in HARMFUL) else 0.0,)

    def _reasons(self) -> int:
        nvml = self.device.nvml
        try:
            return int(getattr(nvml, self._names[0])(self.device.handle))
        except nvml.NVMLError_FunctionNotFound:
            if len(self._names) == 1:
                raise
            del self._names[0]  # the driver is older than pynvml
            return int(getattr(nvml, self._names[0])(self.device.handle))


class Fields(Question):
    """Several counters in one call (`nvmlDeviceGetFieldValues`), each refused or told for itself."""

    group = "gpu-slow"

    def __init__(self, device: Device) -> None:
        super().__init__(device, (("temperature_memory", "°C"), ("ecc_corrected", "1"), ("ecc_uncorrected", "1")))
        nvml: Any = device.nvml
        self._fields = [
            nvml.NVML_FI_DEV_MEMORY_TEMP,
            nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
            nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
        ]

    def ask(self, _now: float) -> Sequence[Answer]:
        device = self.device
        entries = device.nvml.nvmlDeviceGetFieldValues(device.handle, self._fields)
        degrees, corrected, uncorrected = (field_value(device, entry) for entry in entries)
        if degrees == 0:
            degrees = "NVML says 0 °C, which a GPU that works cannot have"
        return (degrees, corrected, uncorrected)


def field_value(device: Device, entry: Any) -> Answer:
    """The value of one entry of `nvmlDeviceGetFieldValues`, or NVML's words."""
    nvml: Any = device.nvml
    if entry.nvmlReturn != nvml.NVML_SUCCESS:
        return device.words(nvml.NVMLError(entry.nvmlReturn))
    return float(getattr(entry.value, _MEMBERS[entry.valueType]))


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The union's member by nvmlValueType_t."""


def questions(device: Device) -> list[Question]:
    """The first one tells the group's age and window."""
    nvml: Any = device.nvml
    return [
        Engine(device, "decoder", "nvmlDeviceGetDecoderUtilization"),
        Engine(device, "encoder", "nvmlDeviceGetEncoderUtilization"),
        Engine(device, "jpeg", "nvmlDeviceGetJpgUtilization"),
        Engine(device, "ofa", "nvmlDeviceGetOfaUtilization"),
        Temperature(device),
        Clock(device, "clock_sm", nvml.NVML_CLOCK_SM),
        Clock(device, "clock_memory", nvml.NVML_CLOCK_MEM),
        PowerLimit(device),
        Throttle(device),
        Fields(device),
    ]
