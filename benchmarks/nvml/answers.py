"""What NVML answers for GPUs that are not there: pynvml's functions over a list of `FakeGpu`."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .latencies import TOGETHER_S
from .machine import FakeGpu, Handle, Machine

SAMPLE_US = 1_000_000 // 6
"""How far apart the driver's utilisation samples are: NVML documents 1/6 s to 1 s."""
KEPT = 100
"""How many samples the driver's buffer holds here."""


def functions(real: Any, machine: Machine) -> dict[str, Callable[..., Any]]:
    """pynvml's functions, by name, answering for `machine`; `real` is pynvml itself, for its types and errors."""

    def check(handle: Handle, function: str) -> None:
        if not machine.running or handle.load != machine.loads:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        gpu = handle.gpu
        if gpu.lost_load == handle.load:
            raise real.NVMLError(real.NVML_ERROR_GPU_IS_LOST)
        code = gpu.errors.get(function, gpu.errors.get("*"))
        if code is not None:
            raise real.NVMLError(code)

    owed = threading.local()

    def pass_time(seconds: float) -> None:
        """Sleep for `seconds`, or together with the next calls of this thread: see `latencies.TOGETHER_S`."""
        due = getattr(owed, "seconds", 0.0) + seconds
        if due >= TOGETHER_S:
            time.sleep(due)
            due = 0.0
        owed.seconds = due

    def of_device(function: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        takes = machine.latency(function)

        def call(handle: Handle, *args: Any) -> Any:
            gpu = handle.gpu
            gpu.asked[function] = gpu.asked.get(function, 0) + 1
            if gpu.delay:
                time.sleep(gpu.delay)
            elif takes:
                pass_time(takes)
            check(handle, function)
            return answer(handle, *args)

        return call

    answers = _state(real) | _activity(real) | _mig(real, machine) | _gpm_of_device(real)
    replaced = {name: of_device(name, answer) for name, answer in answers.items()}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for version in ("_v2", "_v3"):
            replaced[name + version] = replaced[name]
    return replaced | _library(real, machine) | _events(real, machine) | _gpm_of_samples(real)


def _library(real: Any, machine: Machine) -> dict[str, Callable[..., Any]]:
    def init(*_: Any) -> None:
        time.sleep(machine.init_delay)
        if machine.init_error is not None:
            raise real.NVMLError(machine.init_error)
        machine.loads += 0 if machine.running else 1
        machine.running = True

    def shutdown() -> None:
        if not machine.running:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        machine.running = False

    def handle_of(index: int) -> Handle:
        code = machine.gpus[index].errors.get("nvmlDeviceGetHandleByIndex")
        if code is not None:
            raise real.NVMLError(code)
        return Handle(machine.gpus[index], index, machine.loads)

    return {
        "nvmlInit": init,
        "nvmlInitWithFlags": init,
        "nvmlShutdown": shutdown,
        "nvmlDeviceGetCount": lambda: len(machine.gpus),
        "nvmlDeviceGetHandleByIndex": handle_of,
        "nvmlSystemGetDriverVersion": lambda: "simulated",
    }


def _state(real: Any) -> dict[str, Callable[..., Any]]:
    """Memory, power, temperatures, clocks, errors and processes."""

    def memory(handle: Handle) -> Any:
        if handle.mig is not None:
            used, total = handle.mig.used, handle.mig.total
        else:
            used, total = int(handle.gpu.value("used")), handle.gpu.total
        return SimpleNamespace(total=total, used=used, free=total - used)

    def clock(handle: Handle, kind: int) -> int:
        return int(handle.gpu.value("clock_memory" if kind == real.NVML_CLOCK_MEM else "clock_sm"))

    def processes(name: str) -> Callable[[Handle], Any]:
        return lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=None if used < 0 else used)
            for pid, used, _ in handle.gpu.value(name)
        ]

    fields = {
        real.NVML_FI_DEV_MEMORY_TEMP: ("temperature_memory", "uiVal"),
        real.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: ("ecc_corrected", "ullVal"),
        real.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: ("ecc_uncorrected", "ullVal"),
        real.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: ("nvlink_sent_kib", "ullVal"),
        real.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: ("nvlink_received_kib", "ullVal"),
    }
    types = {"uiVal": real.NVML_VALUE_TYPE_UNSIGNED_INT, "ullVal": real.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG}

    def field_values(handle: Handle, wanted: list[Any]) -> Any:
        values = (real.c_nvmlFieldValue_t * len(wanted))()
        for entry, which in zip(values, wanted, strict=True):
            number = which[0] if isinstance(which, tuple) else which
            entry.fieldId = number
            entry.timestamp = int(time.time() * 1e6)
            known = fields.get(number)
            code = handle.gpu.errors.get(f"field {number}", 0 if known else real.NVML_ERROR_NOT_SUPPORTED)
            entry.nvmlReturn = code
            if known and not code:
                name, kind = known
                entry.valueType = types[kind]
                setattr(entry.value, kind, int(handle.gpu.value(name)))
        return values

    return {
        "nvmlDeviceGetName": lambda handle: handle.mig.name if handle.mig else handle.gpu.name,
        "nvmlDeviceGetUUID": lambda handle: handle.gpu.uuid,
        "nvmlDeviceGetIndex": lambda handle: handle.index,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetPowerUsage": lambda handle: int(handle.gpu.value("power_mw")),
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: handle.gpu.limit_mw,
        "nvmlDeviceGetTemperature": lambda handle, _: int(handle.gpu.value("temperature")),
        "nvmlDeviceGetTemperatureV": lambda handle, _: int(handle.gpu.value("temperature")),
        "nvmlDeviceGetClockInfo": clock,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: handle.gpu.value("clocks_event"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: handle.gpu.value("clocks_event"),
        "nvmlDeviceGetFieldValues": field_values,
        "nvmlDeviceGetComputeRunningProcesses": processes("processes"),
        "nvmlDeviceGetGraphicsRunningProcesses": processes("graphics"),
    }


def _activity(real: Any) -> dict[str, Callable[..., Any]]:
    """Utilisation of every engine, and traffic."""

    def sample(at_us: int, value: int) -> Any:
        return SimpleNamespace(timeStamp=at_us, sampleValue=SimpleNamespace(uiVal=value))

    def samples(handle: Handle, kind: int, seen: int) -> tuple[int, list[Any]]:
        gpu = handle.gpu
        if kind != real.NVML_GPU_UTILIZATION_SAMPLES:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
        if gpu.samples is not None:
            found = [sample(at, value) for at, value in gpu.samples if at > seen]
        else:
            newest = int(time.time() * 1e6) // SAMPLE_US
            first = max(newest - KEPT + 1, seen // SAMPLE_US + 1)
            times = [n * SAMPLE_US for n in range(first, newest + 1)]
            found = [sample(at, int(gpu.value("utilisation", at / 1e6))) for at in times]
        if not found:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return real.NVML_VALUE_TYPE_UNSIGNED_INT, found

    def engine(name: str) -> Callable[[Handle], list[int]]:
        return lambda handle: [int(handle.gpu.value(name)), handle.gpu.engine_period_us]

    def pcie(handle: Handle, counter: int) -> int:
        name = "pcie_sent_kb" if counter == real.NVML_PCIE_UTIL_TX_BYTES else "pcie_received_kb"
        return int(handle.gpu.value(name))

    def of_processes(handle: Handle, seen: int) -> list[Any]:
        now = int((time.time() - handle.gpu.process_age_s) * 1e6)
        found = [
            SimpleNamespace(pid=pid, timeStamp=now, smUtil=busy, memUtil=0, encUtil=0, decUtil=0)
            for pid, _, busy in handle.gpu.value("processes")
            if busy and now > seen
        ]
        if not found:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return found

    return {
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(
            gpu=int(handle.gpu.value("utilisation")), memory=int(handle.gpu.value("memory_activity"))
        ),
        "nvmlDeviceGetSamples": samples,
        "nvmlDeviceGetEncoderUtilization": engine("encoder"),
        "nvmlDeviceGetDecoderUtilization": engine("decoder"),
        "nvmlDeviceGetJpgUtilization": engine("jpeg"),
        "nvmlDeviceGetOfaUtilization": engine("ofa"),
        "nvmlDeviceGetPcieThroughput": pcie,
        "nvmlDeviceGetProcessUtilization": of_processes,
    }


def _mig(real: Any, machine: Machine) -> dict[str, Callable[..., Any]]:
    def mode(handle: Handle) -> list[int]:
        if handle.gpu.mig_mode is None:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
        return [handle.gpu.mig_mode, handle.gpu.mig_mode]

    def instance(handle: Handle, which: int) -> Handle:
        if which >= len(handle.gpu.migs):
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return Handle(handle.gpu, handle.index, machine.loads, handle.gpu.migs[which])

    return {
        "nvmlDeviceGetMigMode": mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
        "nvmlDeviceGetGpuInstanceId": lambda handle: handle.mig.instance,
    }


class _Taken(ctypes.Structure):
    """What a GPM sample's memory holds here: which GPU (its id() in this process), which instance, and when."""

    _fields_ = (("gpu", ctypes.py_object), ("mig", ctypes.py_object), ("at", ctypes.c_double))


def _taken(sample: Any) -> _Taken:
    return ctypes.cast(sample, ctypes.POINTER(_Taken)).contents


def _gpm_of_device(real: Any) -> dict[str, Callable[..., Any]]:
    def support(handle: Handle) -> Any:
        return SimpleNamespace(isSupportedDevice=int(handle.gpu.gpm_supported))

    def take(handle: Handle, sample: Any) -> Any:
        if not handle.gpu.gpm_supported:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
        taken = _taken(sample)
        taken.gpu, taken.mig, taken.at = handle.gpu, None, time.time()
        return sample

    def take_mig(handle: Handle, instance: int, sample: Any) -> Any:
        take(handle, sample)
        _taken(sample).mig = next(mig for mig in handle.gpu.migs if mig.instance == instance)
        return sample

    return {
        "nvmlGpmQueryDeviceSupport": support,
        "nvmlGpmSampleGet": take,
        "nvmlGpmMigSampleGet": take_mig,
    }


def _gpm_of_samples(real: Any) -> dict[str, Callable[..., Any]]:
    alive: dict[int, _Taken] = {}

    def allocate() -> Any:
        taken = _Taken(None, None, 0.0)
        alive[ctypes.addressof(taken)] = taken
        return ctypes.cast(ctypes.pointer(taken), real.c_nvmlGpmSample_t)

    def free(sample: Any) -> None:
        del alive[ctypes.cast(sample, ctypes.c_void_p).value or 0]

    def metrics(request: Any) -> Any:
        first, second = _taken(request.sample1), _taken(request.sample2)
        if first.at > second.at:
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        gpu: FakeGpu = second.gpu
        middle = (first.at + second.at) / 2
        entries = request.metrics
        for entry in (entries[which] for which in range(request.numMetrics)):
            number = entry.metricId
            entry.nvmlReturn = gpu.errors.get(f"gpm {number}", 0)
            if second.mig is not None:
                entry.value = second.mig.sm_active
            else:
                entry.value = gpu.gpm_value(number, middle)
        return request

    return {"nvmlGpmSampleAlloc": allocate, "nvmlGpmSampleFree": free, "nvmlGpmMetricsGet": metrics}


def _events(real: Any, machine: Machine) -> dict[str, Callable[..., Any]]:
    def register(handle: Handle, kinds: int, _events: Any) -> None:
        code = handle.gpu.errors.get("nvmlDeviceRegisterEvents", handle.gpu.errors.get("*"))
        if code is not None:
            raise real.NVMLError(code)
        if kinds != real.nvmlEventTypeXidCriticalError:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)

    def wait(_events: Any, timeout_ms: int) -> Any:
        try:
            index, code = machine.events.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            raise real.NVMLError(real.NVML_ERROR_TIMEOUT) from None
        return SimpleNamespace(
            device=Handle(machine.gpus[index], index, machine.loads),
            eventType=real.nvmlEventTypeXidCriticalError,
            eventData=code,
        )

    return {
        "nvmlEventSetCreate": object,
        "nvmlDeviceRegisterEvents": register,
        "nvmlEventSetWait": wait,
        "nvmlEventSetWait_v2": wait,
        "nvmlEventSetFree": lambda _: None,
    }
