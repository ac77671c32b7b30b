"""The metrics of a GPU that NVML gives in a call or two: utilisation, memory, power, engines, clocks, errors, bus."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..probe import NAN
from .nvml import RATES_WINDOW_S, RETRY_S, Answer, Change, Device, Part, Query, QueryTable, call_first, name_and_memory

_RATES_PERIOD_S = 1 / 6  # the shortest period over which NVML takes its rates: read more often, they repeat
STALE_S = 2.0  # without a new sample in the driver's buffer for this long, the rates are shown
LONGEST_STEP_S = 0.5  # samples are read at least this often, however far apart they come
_ANOTHER_CLOCK_S = 60.0  # a sample further from the wall clock has a stamp of another clock
_POWER_PERIOD_S = 0.2  # NVML documents the power of Ampere and later GPUs as the mean of 1 s
_PCIE_WINDOW_S = 0.02  # NVML's own: `nvmlDeviceGetPcieThroughput` blocks while it counts bytes for 20 ms
_ALL_LINKS = 0xFFFF_FFFF  # the scope of a field value that is summed over all NVLinks
_LINGER_S = 60.0  # a throttle reason stays listed for this long, so that the hello does not change every second

HARMFUL = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Clock event reasons (nvml.h: nvmlClocksEventReason…) by which a GPU is slower than it could be. Not among them: an
idle GPU, clocks that a person set, a display's or another GPU's clock."""

_THROTTLE = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Named so since pynvml 12.535; the older name is announced to go with CUDA 14."""

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


class Utilisation(Query):
    """Utilisation and memory activity.

    Utilisation is the mean of the samples in the driver's buffer that are newer than those of the last query
    (`nvmlDeviceGetSamples`), with the samples' own stamps; where a driver keeps none, it is NVML's rate, whose window
    is unknown: 1/6 s to 1 s. Memory activity is always that rate.
    """

    period = 0.0

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu", (("utilisation", "%"), ("memory_activity", "%")))
        self._seen = 0
        self._sampled: Answer = NAN
        self._sampled_at = NAN
        self._samples_due = 0.0
        self._have_samples = False
        self._rates: Any = None
        self._refused = ""
        self._rates_due = 0.0

    def ask(self, now: float) -> Sequence[Answer]:
        if now >= self._samples_due:
            self._read_samples(now)
        fresh = self._have_samples and now - self._sampled_at < STALE_S
        if now >= self._rates_due:
            self._read_rates(now)
        rates = self._rates
        if rates is None:
            return (self._sampled if fresh else self._refused, self._refused)
        if fresh:
            self.at = self._sampled_at
            return (self._sampled, float(rates.memory))
        self.window = RATES_WINDOW_S
        return (float(rates.gpu), float(rates.memory))

    def _read_samples(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            _, samples = nvml.nvmlDeviceGetSamples(self.device.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen)
        except nvml.NVMLError_NotFound:
            return  # none since the last query
        except nvml.NVMLError as error:
            self.device.refused(error)
            self._have_samples = False
            self._samples_due = now + RETRY_S
            return
        read = [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]
        new = sorted((stamp, value) for stamp, value in read if stamp > self._seen and value <= 100)
        if not new:
            return
        newest = new[-1][0]
        if not self._seen:
            # The whole buffer, seconds of it: only its last sample is of now.
            self._seen = new[-2][0] if len(new) > 1 else newest - round(RATES_WINDOW_S * 1e6)
            new = new[-1:]
        self.window = (newest - self._seen) / 1e6
        self._seen = newest
        self._sampled = sum(value for _, value in new) / len(new)
        age = time.time() - newest / 1e6
        self._sampled_at = now - max(0.0, age) if abs(age) < _ANOTHER_CLOCK_S else now
        self._have_samples = True
        # The next sample comes no sooner than these were apart.
        self._samples_due = self._sampled_at + min(self.window / len(new), LONGEST_STEP_S)

    def _read_rates(self, now: float) -> None:
        nvml = self.device.nvml
        try:
            self._rates = nvml.nvmlDeviceGetUtilizationRates(self.device.handle)
            self._rates_due = now + _RATES_PERIOD_S
        except nvml.NVMLError as error:
            self._rates = None
            self._refused = self.device.refused(error) + (" (MIG is on)" if self.device.mig else "")
            self._rates_due = now + RETRY_S


class _Throttle(Query):
    """Whether a harmful reason lowers the clocks now; the reasons go to the hello by `Device.throttle`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("throttled", "%"),))
        self._last_seen: dict[int, float] = {}

    def ask(self, now: float) -> Sequence[Answer]:
        active = int(call_first(self.device.nvml, _THROTTLE, self.device.handle))
        self._last_seen |= {bit: now for bit in HARMFUL if active & bit}
        self.device.throttle = tuple(
            words for bit, words in HARMFUL.items() if now - self._last_seen.get(bit, float("-inf")) < _LINGER_S
        )
        return (100.0 if any(active & bit for bit in HARMFUL) else 0.0,)


class _NvLink(Query):
    """Growth of the counters of payload (KiB) of all links together, by the counters' own stamps."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-bus", (("nvlink_received", "B/s"), ("nvlink_sent", "B/s")))
        nvml: Any = device.nvml
        self._fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
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


def _memory_of(handle: Any, gauge: Gauge) -> Sequence[Answer]:
    """(% of all, bytes) in use by a GPU or a MIG instance."""
    memory = gauge.device.nvml.nvmlDeviceGetMemoryInfo(handle)
    return 100.0 * memory.used / memory.total, float(memory.used)


def load_queries(device: Device) -> list[Query]:
    """Utilisation, memory and power, which are read with every frame, or nearly so."""
    memory = Gauge(device, "gpu", (("memory", "%"), ("memory_used", "B")), partial(_memory_of, device.handle))
    power = Gauge(device, "gpu", (("power", "%"), ("power_draw", "W")), _power)
    memory.period, power.period = 0.0, _POWER_PERIOD_S
    return [Utilisation(device), memory, power]


def slow_queries(device: Device) -> list[Query]:
    """Engines, temperatures, clocks and memory errors; the first query gives the group's age and window."""
    nvml: Any = device.nvml
    fields = (("temperature_memory", "°C"), ("ecc_corrected", "1"), ("ecc_uncorrected", "1"))
    engines = {"decoder": "Decoder", "encoder": "Encoder", "jpeg": "Jpg", "ofa": "Ofa"}
    clocks = {"clock_sm": nvml.NVML_CLOCK_SM, "clock_memory": nvml.NVML_CLOCK_MEM}
    return [
        *(Gauge(device, "gpu-slow", ((part, "%"),), partial(_engine, name)) for part, name in engines.items()),
        Gauge(device, "gpu-slow", (("temperature", "°C"),), _temperature),
        *(Gauge(device, "gpu-slow", ((part, "MHz"),), partial(_clock, kind)) for part, kind in clocks.items()),
        Gauge(device, "gpu-slow", (("power_limit", "W"),), lambda gauge: (_power_limit(gauge.device),)),
        _Throttle(device),
        Gauge(device, "gpu-slow", fields, _fields),
    ]


def node_queries(device: Device) -> list[Query]:
    """Utilisation, memory and clock: what is known of a GPU of another machine."""
    utilisation, memory, _ = load_queries(device)
    clock = Gauge(device, "gpu-slow", (("clock_sm", "MHz"),), partial(_clock, device.nvml.NVML_CLOCK_SM))
    return [utilisation, memory, clock]


def bus_queries(device: Device) -> list[Query]:
    """Traffic over PCIe and NVLink as the GPU counts it; the first query gives the group's age and window."""
    parts = (("pcie_received", "B/s"), ("pcie_sent", "B/s"))
    return [Gauge(device, "gpu-bus", parts, _pcie), _NvLink(device)]


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


def _engine(name: str, gauge: Gauge) -> Sequence[Answer]:
    """A fixed-function engine's share of time, over the sampling period that NVML gives with it."""
    busy, period_us = gauge.call(f"nvmlDeviceGet{name}Utilization")
    gauge.window = period_us / 1e6
    return (float(busy),)


def _clock(kind: int, gauge: Gauge) -> Sequence[Answer]:
    return (float(gauge.call("nvmlDeviceGetClockInfo", kind)),)


def _temperature(gauge: Gauge) -> Sequence[Answer]:
    nvml = gauge.device.nvml
    # The first is announced to go with CUDA 14; its successor is unknown to older drivers.
    names = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
    return (float(call_first(nvml, names, gauge.device.handle, nvml.NVML_TEMPERATURE_GPU)),)


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
    gauge.window = _PCIE_WINDOW_S
    received = gauge.call("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_RX_BYTES)
    sent = gauge.call("nvmlDeviceGetPcieThroughput", nvml.NVML_PCIE_UTIL_TX_BYTES)
    return (received * 1000.0, sent * 1000.0)  # documented in KB/s


def _field_value(device: Device, entry: Any) -> Answer:
    """The value of one entry of `nvmlDeviceGetFieldValues`, or NVML's words."""
    nvml: Any = device.nvml
    if entry.nvmlReturn != nvml.NVML_SUCCESS:
        return device.refused(nvml.NVMLError(entry.nvmlReturn))
    return float(getattr(entry.value, _MEMBERS[entry.valueType]))


# ---- GPM, the performance counters of Hopper and later GPUs: what the multiprocessors really do.

_MIB = float(1 << 20)

METRICS: tuple[tuple[str, str, str, float], ...] = (
    ("sm_active", "%", "NVML_GPM_METRIC_SM_UTIL", 1.0),
    ("sm_occupancy", "%", "NVML_GPM_METRIC_SM_OCCUPANCY", 1.0),
    ("tensor_active", "%", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", 1.0),
    ("dram_active", "%", "NVML_GPM_METRIC_DRAM_BW_UTIL", 1.0),
    ("fp16_active", "%", "NVML_GPM_METRIC_FP16_UTIL", 1.0),
    ("fp32_active", "%", "NVML_GPM_METRIC_FP32_UTIL", 1.0),
    ("fp64_active", "%", "NVML_GPM_METRIC_FP64_UTIL", 1.0),
    ("gpm_pcie_received", "B/s", "NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
    ("gpm_pcie_sent", "B/s", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
)
"""(last part of the series' name, unit, pynvml's name of the metric, what its value is multiplied by)."""

_SM_ACTIVE = METRICS[:1]


class Gpm(Query):
    """Each answer covers the time between two samples of the counters: the last query's and this one's."""

    def __init__(
        self,
        device: Device,
        metrics: Sequence[tuple[str, str, str, float]] = METRICS,
        prefix: str = "",  # of the series' names
        instance: int | None = None,  # number of the GPU instance whose counters are meant; None for the whole GPU
    ) -> None:
        group = "gpm" if instance is None else "mig"
        super().__init__(device, group, [(prefix + name, unit) for name, unit, _, _ in metrics])
        self._metrics = metrics
        self._instance = instance
        self._request: Any = None
        self._samples: list[Any] = []
        self._taken_at = NAN

    def ask(self, now: float) -> Sequence[Answer]:
        nvml: Any = self.device.nvml
        if self._request is None:
            self._prepare(nvml)
        spare, last = self._samples
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self.device.handle, spare)
        else:
            nvml.nvmlGpmMigSampleGet(self.device.handle, self._instance, spare)
        self._samples = [last, spare]
        before, self._taken_at = self._taken_at, now
        if not now > before:
            return (NAN,) * len(self._metrics)  # the first sample
        self.window = now - before
        request = self._request
        request.sample1, request.sample2 = last, spare
        nvml.nvmlGpmMetricsGet(request)
        return [self._answer(nvml, which, row[3]) for which, row in enumerate(self._metrics)]

    def _answer(self, nvml: Any, which: int, factor: float) -> Answer:
        entry = self._request.metrics[which]
        if entry.nvmlReturn != nvml.NVML_SUCCESS:
            return self.device.refused(nvml.NVMLError(entry.nvmlReturn))
        return float(entry.value) * factor

    def _prepare(self, nvml: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(self.device.handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        while len(self._samples) < 2:  # a call may fail: the next query goes on
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        for which, (_, _, constant, _) in enumerate(self._metrics):
            request.metrics[which].metricId = getattr(nvml, constant)
        self._request = request

    def close(self) -> None:
        nvml: Any = self.device.nvml
        samples, self._samples, self._request = self._samples, [], None
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)


# ---- MIG instances of a GPU: their memory and their multiprocessors' activity.


@dataclass(frozen=True)
class _Instance:
    """One MIG instance."""

    index: int  # NVML's index of it on its GPU
    name: str  # of its profile
    memory_total: int | None  # bytes, or None where NVML does not give it
    gpu_instance: int | None  # number of the GPU instance that it is (a part of)
    handle: Any = field(compare=False)


class MigTable(QueryTable):
    """Queries each MIG instance of a GPU; lists the instances again every `RETRY_S`."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, [])
        self.instances: tuple[_Instance, ...] = ()
        self._list_due = 0.0
        self._list()

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        changes: list[Change] = []
        if now >= self._list_due:
            self._list_due = now + RETRY_S
            changes = self._list()
        return changes + super().ask(now, tolerance)

    def _list(self) -> list[Change]:
        """List the instances; returns what changed."""
        device = self.device
        nvml: Any = device.nvml
        found: list[_Instance] = []
        try:
            device.mig = device.handle is not None and bool(nvml.nvmlDeviceGetMigMode(device.handle)[0])
            if device.mig:
                for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle)):
                    try:
                        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
                    except nvml.NVMLError_NotFound:
                        continue
                    found.append(_instance(nvml, index, handle))
        except nvml.NVMLError as error:
            device.refused(error)
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED and self.instances:
                return []  # not now: the instances keep their rows
        if tuple(found) == self.instances:
            return []
        self.instances = tuple(found)
        queries: list[Query] = []
        for instance in found:
            parts = ((f"mig/{instance.index}/memory", "%"), (f"mig/{instance.index}/memory_used", "B"))
            queries.append(Gauge(device, "mig", parts, partial(_memory_of, instance.handle)))
            if instance.gpu_instance is not None:
                queries.append(Gpm(device, _SM_ACTIVE, f"mig/{instance.index}/", instance.gpu_instance))
        self.lay_out(queries)
        return [Change(device.index, "MIG", f"{len(found)} instance(s)")]


def _instance(nvml: Any, index: int, handle: Any) -> _Instance:
    name, total = name_and_memory(nvml, handle, f"MIG instance {index}")
    try:
        part = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
    except nvml.NVMLError:
        part = None
    return _Instance(index, name, total, part, handle)
