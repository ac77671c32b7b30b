"""The metrics of a GPU that NVML gives in a call or two: memory, power, engines, temperatures, clocks, errors, bus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..probe import NAN
from .nvml import Answer, Device, Part, Query

POWER_PERIOD_S = 0.2  # NVML documents the power of Ampere and later GPUs as the mean of 1 s
PCIE_WINDOW_S = 0.02  # NVML's own: `nvmlDeviceGetPcieThroughput` blocks while it counts bytes for 20 ms
ALL_LINKS = 0xFFFF_FFFF  # the scope of a field value that is summed over all NVLinks
LINGER_S = 60.0  # a throttle reason stays listed for this long, so that the hello does not change every second

HARMFUL = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Clock event reasons (nvml.h: nvmlClocksEventReason…) by which a GPU is slower than it could be. Not among them: an
idle GPU, clocks that a person set, a display's or another GPU's clock."""

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field value's union, by nvmlValueType_t."""


class Gauge(Query):
    """A query without state: `read(gauge)` gives the answers, one per part, and may set the gauge's `window`."""

    def __init__(
        self, device: Device, group: str, parts: Sequence[Part], read: Callable[[Gauge], Sequence[Answer]]
    ) -> None:
        super().__init__(device, group, parts)
        self._read = read

    def ask(self, _now: float) -> Sequence[Answer]:
        return self._read(self)

    def call(self, function: str, *arguments: Any) -> Any:
        """Call pynvml's `function` with the device's handle."""
        return getattr(self.device.nvml, function)(self.device.handle, *arguments)


class Throttle(Query):
    """Whether a harmful reason lowers the clocks now; the reasons go to the hello by `Device.throttle`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("throttled", "%"),))
        # Named so since pynvml 12.535; the older name is announced to go with CUDA 14.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        self._functions = [getattr(device.nvml, name) for name in names if hasattr(device.nvml, name)]
        self._last_seen: dict[int, float] = {}

    def ask(self, now: float) -> Sequence[Answer]:
        active = self._reasons()
        self._last_seen |= {bit: now for bit in HARMFUL if active & bit}
        self.device.throttle = tuple(
            words for bit, words in HARMFUL.items() if now - self._last_seen.get(bit, float("-inf")) < LINGER_S
        )
        return (100.0 if any(active & bit for bit in HARMFUL) else 0.0,)

    def _reasons(self) -> int:
        try:
            return int(self._functions[0](self.device.handle))
        except self.device.nvml.NVMLError_FunctionNotFound:
            if len(self._functions) == 1:
                raise
            del self._functions[0]  # the driver is older than pynvml
            return int(self._functions[0](self.device.handle))


class NvLink(Query):
    """Growth of the counters of payload (KiB) of all links together, by the counters' own stamps."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-bus", (("nvlink_received", "B/s"), ("nvlink_sent", "B/s")))
        nvml: Any = device.nvml
        self._fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        ]
        self._last = [(NAN, NAN), (NAN, NAN)]  # stamp in s and count of each

    def ask(self, now: float) -> Sequence[Answer]:
        device = self.device
        entries = device.nvml.nvmlDeviceGetFieldValues(device.handle, self._fields)
        return [self._rate(which, entry, now) for which, entry in enumerate(entries)]

    def _rate(self, which: int, entry: Any, now: float) -> Answer:
        count = _field_value(self.device, entry)
        if isinstance(count, str):
            self._last[which] = (NAN, NAN)
            return count
        stamp = entry.timestamp / 1e6 or now
        before, counted = self._last[which]
        self._last[which] = (stamp, count)
        elapsed = stamp - before
        if not elapsed > 0 or count < counted:
            return NAN  # the first count, or the counters were reset
        self.window = elapsed
        return (count - counted) * 1024.0 / elapsed


def memory_of(device: Device, handle: Any) -> tuple[float, float]:
    """(% of all, bytes) in use by a GPU or a MIG instance."""
    memory = device.nvml.nvmlDeviceGetMemoryInfo(handle)
    return 100.0 * memory.used / memory.total, float(memory.used)


def load_gauges(device: Device) -> list[Query]:
    """Memory and power, which are read with every frame, or nearly so."""
    memory = Gauge(device, "gpu", (("memory", "%"), ("memory_used", "B")), _memory)
    power = Gauge(device, "gpu", (("power", "%"), ("power_draw", "W")), _power)
    memory.period, power.period = 0.0, POWER_PERIOD_S
    return [memory, power]


def slow_gauges(device: Device) -> list[Query]:
    """Engines, temperatures, clocks and memory errors; the first query gives the group's age and window."""
    nvml: Any = device.nvml
    fields = (("temperature_memory", "°C"), ("ecc_corrected", "1"), ("ecc_uncorrected", "1"))
    engines = {"decoder": "Decoder", "encoder": "Encoder", "jpeg": "Jpg", "ofa": "Ofa"}
    clocks = {"clock_sm": nvml.NVML_CLOCK_SM, "clock_memory": nvml.NVML_CLOCK_MEM}
    return [
        *(
            Gauge(device, "gpu-slow", ((part, "%"),), _engine(f"nvmlDeviceGet{name}Utilization"))
            for part, name in engines.items()
        ),
        Gauge(device, "gpu-slow", (("temperature", "°C"),), _temperature),
        *(Gauge(device, "gpu-slow", ((part, "MHz"),), _clock(kind)) for part, kind in clocks.items()),
        Gauge(device, "gpu-slow", (("power_limit", "W"),), lambda gauge: (_power_limit(gauge.device),)),
        Throttle(device),
        Gauge(device, "gpu-slow", fields, _fields),
    ]


def bus_queries(device: Device) -> list[Query]:
    """Traffic over PCIe and NVLink as the GPU counts it; the first query gives the group's age and window."""
    parts = (("pcie_received", "B/s"), ("pcie_sent", "B/s"))
    return [Gauge(device, "gpu-bus", parts, _pcie), NvLink(device)]


def _memory(gauge: Gauge) -> Sequence[Answer]:
    return memory_of(gauge.device, gauge.device.handle)


def _power(gauge: Gauge) -> Sequence[Answer]:
    device = gauge.device
    draw = gauge.call("nvmlDeviceGetPowerUsage") / 1000.0
    limit = _power_limit(device) if device.limit is None else device.limit
    if isinstance(limit, str):
        return (f"power limit: {limit}", draw)
    return (100.0 * draw / limit if limit > 0 else "power limit: 0 W", draw)


def _power_limit(device: Device) -> Answer:
    """The enforced limit in W, the lowest of those that people and the system set; kept in `device.limit`, too."""
    try:
        device.limit = device.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle) / 1000.0
    except device.nvml.NVMLError as error:
        device.limit = device.refused(error)
    return device.limit


def _engine(function: str) -> Callable[[Gauge], Sequence[Answer]]:
    """A fixed-function engine's share of time, over the sampling period that NVML gives with it."""

    def read(gauge: Gauge) -> Sequence[Answer]:
        busy, period_us = gauge.call(function)
        gauge.window = period_us / 1e6
        return (float(busy),)

    return read


def _clock(kind: int) -> Callable[[Gauge], Sequence[Answer]]:
    return lambda gauge: (float(gauge.call("nvmlDeviceGetClockInfo", kind)),)


def _temperature(gauge: Gauge) -> Sequence[Answer]:
    nvml = gauge.device.nvml
    try:
        return (float(gauge.call("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)),)
    except nvml.NVMLError_FunctionNotFound:  # announced for CUDA 14; its successor is unknown to older drivers
        return (float(gauge.call("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)),)


def _fields(gauge: Gauge) -> Sequence[Answer]:
    """Several counters in one call, each refused or given for itself."""
    nvml: Any = gauge.device.nvml
    fields = [nvml.NVML_FI_DEV_MEMORY_TEMP, nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL]
    entries = gauge.call("nvmlDeviceGetFieldValues", fields)
    degrees, corrected, uncorrected = (_field_value(gauge.device, entry) for entry in entries)
    if degrees == 0:
        degrees = "NVML says 0 °C, which a GPU that works cannot have"
    return (degrees, corrected, uncorrected)


def _pcie(gauge: Gauge) -> Sequence[Answer]:
    nvml = gauge.device.nvml
    gauge.window = PCIE_WINDOW_S
    received = gauge.call("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES)
    sent = gauge.call("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES)
    return (received * 1000.0, sent * 1000.0)  # documented in KB/s


def _field_value(device: Device, entry: Any) -> Answer:
    """The value of one entry of `nvmlDeviceGetFieldValues`, or NVML's words."""
    nvml: Any = device.nvml
    if entry.nvmlReturn != nvml.NVML_SUCCESS:
        return device.refused(nvml.NVMLError(entry.nvmlReturn))
    return float(getattr(entry.value, _MEMBERS[entry.valueType]))
