"""NVML: its GPUs, the base class of queries, and NVML's own words where it gives no value."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from ..probe import NAN

Answer = float | str  # a value, or why there is none
Part = tuple[str, str]  # (last part of a series' name, unit)

RATES_WINDOW_S = 1.0
"""The longest period over which NVML takes its utilisation rates: documented as 1/6 s to 1 s, by product."""
RETRY_S = 10.0  # a query that NVML refused is repeated after this

GONE = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
    "GPU_NOT_FOUND",
)
"""NVML's errors after which a GPU answers again only to a library that was started again."""


class NvmlError(Exception):
    """There is no GPU to query; the message is the reason, in NVML's words where it has any."""


@dataclass
class Device:
    """One GPU."""

    index: int  # NVML's index
    name: str  # the product's name
    memory_total: int | None  # bytes, or None where NVML does not give it
    nvml: ModuleType  # the module pynvml
    handle: Any  # NVML's handle; None if it gave none, then `lost` is the reason
    lost: str = ""
    mig: bool = False  # whether it is divided into MIG instances
    gone: bool = False  # whether it answers only after NVML is started again
    limit: Answer | None = None  # the enforced power limit in W, or why there is none; None before it was read
    throttle: tuple[str, ...] = ()  # what lowers the clocks, or did within the last minute, in words
    pids: frozenset[int] | None = None  # the processes of the kernel's tree; None while they are not known
    foreign_pids: bool = False  # whether NVML lists processes, but none that exists here under its number

    def refused(self, error: Any) -> str:
        """NVML's words for one of its errors; notes whether the GPU has gone."""
        if any(error.value == getattr(self.nvml, f"NVML_ERROR_{name}", -1) for name in GONE):
            self.gone = True
        return refusal(self.nvml, error)


class Query:
    """Some metrics of one GPU that are read with one call to NVML or a few."""

    period: float = 1.0  # seconds between two readings; 0 is every round
    retry: float = RETRY_S  # seconds until a query is repeated that NVML refused

    def __init__(self, device: Device, group: str, parts: Sequence[Part]) -> None:
        self.device = device
        self.group = group  # what it is read together with (docs/metrics.md)
        self.parts = tuple(parts)
        self.window = 0.0  # seconds that the newest answer covers
        self.at = NAN  # `time.monotonic()` of the newest answer
        self.due = 0.0
        self.place = 0  # of its first value in its table
        # First parts of the group's queries before it; if all are refused, this one gives the group's time.
        self.earlier: frozenset[str] = frozenset()
        self._reported = False

    def ask(self, now: float) -> Sequence[Answer]:
        """The answers, one per part. Raises pynvml's errors."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back to NVML what was allocated."""

    def answers(self, now: float) -> Sequence[Answer]:
        """As `ask`; where that raises, words why there is no value."""
        device = self.device
        if device.handle is None:
            return (device.lost,) * len(self.parts)
        self.at = now
        try:
            return self.ask(now)
        except device.nvml.NVMLError as error:
            words = device.refused(error)
        except Exception as error:  # noqa: BLE001 - a broken driver may raise anything; the other queries go on
            if not self._reported:
                self._reported = True
                traceback.print_exc()
            words = f"{type(error).__name__}: {error}"
        return (words,) * len(self.parts)


def refusal(nvml: ModuleType, error: Any) -> str:
    """NVML's words, with the remedy where the words alone name none."""
    if error.value == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", None):
        return f"{error} The driver was updated: reboot, or reload it, then stop and start the monitor."
    return str(error)


def call_first(nvml: ModuleType, names: Sequence[str], *arguments: Any) -> Any:
    """Call the first of these functions that pynvml has and the driver knows: either may be older than the other."""
    *preferred, last = [getattr(nvml, name) for name in names if hasattr(nvml, name)]
    for function in preferred:
        with suppress(nvml.NVMLError_FunctionNotFound, nvml.NVMLLibraryMismatchError):
            return function(*arguments)
    return last(*arguments)


def open_devices() -> list[Device]:
    """Start NVML and list its GPUs; an NvmlError without library, driver or GPU."""
    try:
        pynvml = import_module("pynvml")
    except ImportError as error:
        raise NvmlError(f"{error}; the package nvidia-ml-py provides it") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlError(refusal(pynvml, error)) from error
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count:
            return [_open(pynvml, index) for index in range(count)]
        failure = "NVML lists no GPU"
    except pynvml.NVMLError as error:
        failure = refusal(pynvml, error)
    close(pynvml)
    raise NvmlError(failure)


def close(nvml: ModuleType) -> None:
    """Shut the library down; handles are void from then on."""
    with suppress(nvml.NVMLError):  # it is down already: the driver went
        nvml.nvmlShutdown()


def uuid_of(device: Device) -> str:
    """A GPU's UUID without NVML's `GPU-`, in small letters; empty where NVML gives none."""
    if device.handle is None:
        return ""
    try:
        found = device.nvml.nvmlDeviceGetUUID(device.handle)
    except device.nvml.NVMLError:
        return ""
    text = found.decode() if isinstance(found, bytes) else str(found)
    return text.removeprefix("GPU-").lower()


def index_of(uuid: str) -> int | None:
    """NVML's index of this machine's GPU with that UUID (`uuid_of`); None where there is none, or no NVML."""
    try:
        devices = open_devices()
    except NvmlError:
        return None
    found = next((device.index for device in devices if uuid_of(device) == uuid), None)
    close(devices[0].nvml)
    return found


def name_and_memory(nvml: ModuleType, handle: Any, called: str) -> tuple[str, int | None]:
    """The name (`called`, with the reason, if NVML gives none) and total memory in bytes of a GPU or a MIG instance."""
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        name = f"{called} (no name: {error})"
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None  # the reading of the memory gives the reason
    return name.decode() if isinstance(name, bytes) else name, total


def _open(nvml: ModuleType, index: int) -> Device:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        device = Device(index, f"GPU {index}", None, nvml, None)
        device.lost = device.refused(error)
        return device
    return Device(index, *name_and_memory(nvml, handle, f"GPU {index}"), nvml, handle)
