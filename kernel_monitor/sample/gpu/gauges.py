"""Queries of a GPU's metrics through NVML: load, power, clocks, errors, bus, counters, MIG, and processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

from ..probe import NAN
from .nvml import RATES_WINDOW_S, RETRY_S, Answer, Change, Device, Part, Query, QueryTable, call_first, name_and_memory

_RATES_PERIOD_S = 1 / 6  # the shortest period over which NVML takes its rates: read more often, they repeat
STALE_S = 2.0  # without a new sample in the driver's buffer for this long, the rates are used
LONGEST_STEP_S = 0.5  # the buffer's samples are read at least this often, however far apart they come
_OTHER_CLOCK_S = 60.0  # a sample further from the wall clock has a stamp of another clock
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
"""Clock event reasons (nvml.h: nvmlClocksEventReason…) that make a GPU slower than it could be. An idle GPU, clocks set
by a user, and clocks that follow a display or another GPU are not among them."""

_THROTTLE = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The function's name since pynvml 12.535, and its older name, which NVIDIA will remove with CUDA 14."""

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field value's union, indexed by nvmlValueType_t."""


class Gauge(Query):
    """A query without state: `read(gauge)` returns the answers, one per part, and may set the gauge's `window`."""

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
    """A query of utilisation and memory activity.

    Utilisation is the mean of the samples that came into the driver's buffer since the last query
    (`nvmlDeviceGetSamples`), with the samples' own stamps. Where a driver keeps no samples, it is NVML's rate, whose
    window is unknown: 1/6 s to 1 s. Memory activity is always NVML's rate.
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
            # The first query returns the whole buffer, some seconds: only its last sample is of this moment.
            self._seen = new[-2][0] if len(new) > 1 else newest - round(RATES_WINDOW_S * 1e6)
            new = new[-1:]
        self.window = (newest - self._seen) / 1e6
        self._seen = newest
        self._sampled = sum(value for _, value in new) / len(new)
        age = time.time() - newest / 1e6
        self._sampled_at = now - max(0.0, age) if abs(age) < _OTHER_CLOCK_S else now
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
    """A query that is 100 % while a harmful reason lowers the clocks; it sets `Device.throttle` for the hello."""

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
    """A query of NVLink traffic: growth of the payload counters (KiB) of all links, by the counters' own stamps."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-bus", (("nvlink_received", "B/s"), ("nvlink_sent", "B/s")))
        nvml: Any = device.nvml
        self._fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
        ]
        self._last = [(NAN, NAN), (NAN, NAN)]  # stamp in s and count of each direction

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
    """Return the memory in use of a GPU or a MIG instance: % of its total, and bytes."""
    memory = gauge.device.nvml.nvmlDeviceGetMemoryInfo(handle)
    return 100.0 * memory.used / memory.total, float(memory.used)


def load_queries(device: Device) -> list[Query]:
    """Return the queries of utilisation, memory and power, which are asked for every frame, or nearly so."""
    memory = Gauge(device, "gpu", (("memory", "%"), ("memory_used", "B")), partial(_memory_of, device.handle))
    power = Gauge(device, "gpu", (("power", "%"), ("power_draw", "W")), _power)
    memory.period, power.period = 0.0, _POWER_PERIOD_S
    return [Utilisation(device), memory, power]


def slow_queries(device: Device) -> list[Query]:
    """Return the queries of engines, temperatures, clocks and memory errors.

    The first one gives the group's age and window.
    """
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
    """Return the queries for a GPU of another machine: utilisation, memory and clock."""
    utilisation, memory, _ = load_queries(device)
    clock = Gauge(device, "gpu-slow", (("clock_sm", "MHz"),), partial(_clock, device.nvml.NVML_CLOCK_SM))
    return [utilisation, memory, clock]


def bus_queries(device: Device) -> list[Query]:
    """Return the queries of traffic over PCIe and NVLink; the first one gives the group's age and window."""
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
    """Return the enforced limit in W, the lowest that is set by users or the system; also sets `device.limit`."""
    try:
        device.limit = device.nvml.nvmlDeviceGetEnforcedPowerLimit(device.handle) / 1000.0
    except device.nvml.NVMLError as error:
        device.limit = device.refused(error)
    return device.limit


def _engine(name: str, gauge: Gauge) -> Sequence[Answer]:
    """Return a fixed-function engine's share of time, over the sampling period that NVML gives with it."""
    busy, period_us = gauge.call(f"nvmlDeviceGet{name}Utilization")
    gauge.window = period_us / 1e6
    return (float(busy),)


def _clock(kind: int, gauge: Gauge) -> Sequence[Answer]:
    return (float(gauge.call("nvmlDeviceGetClockInfo", kind)),)


def _temperature(gauge: Gauge) -> Sequence[Answer]:
    nvml = gauge.device.nvml
    # NVIDIA will remove the first with CUDA 14; older drivers do not have its successor.
    names = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
    return (float(call_first(nvml, names, gauge.device.handle, nvml.NVML_TEMPERATURE_GPU)),)


def _fields(gauge: Gauge) -> Sequence[Answer]:
    """Return memory temperature and ECC errors, read in one call; NVML may refuse each of them separately."""
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
    """Return the value of one entry of `nvmlDeviceGetFieldValues`, or NVML's error text."""
    nvml: Any = device.nvml
    if entry.nvmlReturn != nvml.NVML_SUCCESS:
        return device.refused(nvml.NVMLError(entry.nvmlReturn))
    return float(getattr(entry.value, _MEMBERS[entry.valueType]))


# ---- GPM, the performance counters of Hopper and later GPUs: activity of the multiprocessors and memory.

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
"""(last part of the series' name, unit, pynvml's name of the metric, factor for its value)."""

_SM_ACTIVE = METRICS[:1]


class Gpm(Query):
    """A query of performance counters; each answer covers the time since the last query."""

    def __init__(
        self,
        device: Device,
        metrics: Sequence[tuple[str, str, str, float]] = METRICS,
        prefix: str = "",  # prefix of the series' names
        instance: int | None = None,  # number of the GPU instance whose counters are read; None for the whole GPU
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
    """A MIG instance."""

    index: int  # its index on its GPU
    name: str  # name of its profile
    memory_total: int | None  # bytes, or None where NVML does not give it
    gpu_instance: int | None  # number of the GPU instance that it is (a part of)
    handle: Any = field(compare=False)


class MigTable(QueryTable):
    """A table of queries of a GPU's MIG instances, which are listed again every `RETRY_S`."""

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
        """List the instances; return the changes."""
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
                return []  # a passing failure: the instances keep their rows
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


# ---- Memory and utilisation of the kernel's own processes on a GPU.

_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own pid namespace (Linux: PROC_PID_INIT_INO)

ELSEWHERE = "NVML names processes of another pid namespace"
NOT_YET = "the kernel's process tree is not known yet"
NOT_GIVEN = "the driver does not give the memory of single processes"
SOON_S = 2.0  # a refused query is repeated this soon: the tree becomes known after the first one
_GRAPHICS_PERIOD_S = 5.0  # seconds between two listings of processes that only use graphics
HELD_S = 3.0
"""A process's newest sample counts for this long; the driver takes a sample about every second. (The first query
returns all samples in its buffer, some of them of processes that have been idle since.)"""


@cache
def in_first_namespace() -> bool:
    """Return whether this process's pids are those that the driver reports; in most containers they are not."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


class ProcessMemory(Query):
    """A query of the GPU memory of the kernel's process tree: of each process, compute or graphics, the larger."""

    retry = SOON_S

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("process_memory", "B"),))
        self._graphics: dict[int, int | None] = {}
        self._graphics_due = 0.0

    def ask(self, now: float) -> Sequence[Answer]:
        pids = _tree(self.device)
        if isinstance(pids, str):
            return (pids,)
        if now >= self._graphics_due:
            self._graphics_due = now + _GRAPHICS_PERIOD_S
            try:
                self._graphics = dict(self._listed("nvmlDeviceGetGraphicsRunningProcesses"))
            except self.device.nvml.NVMLError as error:
                self.device.refused(error)
                self._graphics = {}  # a GPU without graphics; compute processes are listed next
        used = dict(self._graphics)
        for pid, size in self._listed("nvmlDeviceGetComputeRunningProcesses"):
            known = used.get(pid)
            used[pid] = size if known is None or size is None else max(size, known)
        own = [size for pid, size in used.items() if pid in pids]
        # Some containers' pid namespaces look like the machine's own: then no pid that NVML lists exists here.
        self.device.foreign_pids = bool(used) and not own and not any(psutil.pid_exists(pid) for pid in used)
        if self.device.foreign_pids:
            return (ELSEWHERE,)
        if any(size is None for size in own):
            return (NOT_GIVEN,)
        return (float(sum(size for size in own if size is not None)),)

    def _listed(self, function: str) -> Iterator[tuple[int, int | None]]:
        for process in call_first(self.device.nvml, (function, f"{function}_v2"), self.device.handle):
            yield process.pid, process.usedGpuMemory


class ProcessUtilisation(Query):
    """A query of the GPU utilisation by the kernel's process tree: the sum of each process's newest sample."""

    retry = SOON_S

    def __init__(self, device: Device) -> None:
        super().__init__(device, "gpu-slow", (("process_utilisation", "%"),))
        self._seen = 0
        self._newest: dict[int, tuple[float, int]] = {}

    def ask(self, now: float) -> Sequence[Answer]:
        pids = _tree(self.device)
        if isinstance(pids, str) or self.device.foreign_pids:
            return (pids if isinstance(pids, str) else ELSEWHERE,)
        for sample in self._samples():
            self._seen = max(self._seen, sample.timeStamp)
            age = time.time() - sample.timeStamp / 1e6
            # Some drivers put numbers far above 100 into samples of processes that have just begun.
            if sample.smUtil <= 100:
                self._newest[sample.pid] = (now - max(0.0, age), sample.smUtil)
        self._newest = {pid: seen for pid, seen in self._newest.items() if now - seen[0] <= HELD_S}
        return (min(100.0, float(sum(busy for pid, (_, busy) in self._newest.items() if pid in pids))),)

    def _samples(self) -> Sequence[Any]:
        nvml = self.device.nvml
        try:
            samples: Sequence[Any] = nvml.nvmlDeviceGetProcessUtilization(self.device.handle, self._seen)
        except nvml.NVMLError as error:
            # pynvml raises even `NVML_SUCCESS` where there was nothing to list.
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):
                return ()
            raise
        return sorted(samples, key=lambda sample: int(sample.timeStamp))


def _tree(device: Device) -> frozenset[int] | str:
    """Return the pids of the kernel's process tree, or why they cannot be used."""
    if not in_first_namespace():
        return ELSEWHERE
    return NOT_YET if device.pids is None else device.pids
