"""Xid events: errors of a GPU that the driver reports, as notices."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .nvml import Device

WAIT_MS = 1000  # how long a call waits for an event; `stop` is noticed after it

_MEANINGS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    48: "double-bit ECC error",
    61: "internal micro-controller warning",
    62: "internal micro-controller halt",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping could not be recorded",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    109: "context switch timeout",
    119: "GPU system processor does not answer",
    120: "GPU system processor error",
    121: "corrected error of the link between CPU and GPU",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "GPU recovery action changed",
}
"""Short words for the commoner codes, after NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors)."""


def message(gpu: int | None, code: int) -> str:
    """The sentence for people: `GPU 0: Xid 79 (GPU has fallen off the bus)`."""
    which = "a GPU" if gpu is None else f"GPU {gpu}"
    return f"{which}: Xid {code} ({_MEANINGS.get(code, 'see docs.nvidia.com/deploy/xid-errors')})"


class XidWatch:
    """Waits for Xid events of all GPUs on a thread of its own, and calls `notify` there with the notice for each."""

    def __init__(self, devices: Sequence[Device], notify: Callable[[dict[str, Any]], None]) -> None:
        self.reasons: dict[int, str] = {}  # per GPU's index, why its events are not reported
        self.thread = threading.Thread(target=self._run, name="nvml-xid", daemon=True)
        self._devices = [device for device in devices if device.handle is not None]
        self._notify = notify
        self._stop = threading.Event()

    def start(self) -> None:
        """Register and begin to wait; returns at once where no GPU has such events."""
        if not self._devices:
            return
        nvml: Any = self._devices[0].nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.reasons = {device.index: device.refused(error) for device in self._devices}
            return
        for device in self._devices:
            try:
                nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            except nvml.NVMLError as error:
                self.reasons[device.index] = device.refused(error)
        if len(self.reasons) < len(self._devices):
            self.thread.start()

    def stop(self) -> None:
        """Wait no more: the thread ends within `WAIT_MS`."""
        self._stop.set()

    def _run(self) -> None:
        nvml: Any = self._devices[0].nvml
        while not self._stop.is_set():
            try:
                event = nvml.nvmlEventSetWait(self._events, WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError as error:
                if self._stop.is_set():
                    return
                self.reasons = {device.index: device.refused(error) for device in self._devices}
                self._stop.wait(WAIT_MS / 1000)
                continue
            code, index = int(event.eventData), self._index(event.device)
            self._notify(
                {"level": "warning", "kind": "xid", "gpu": index, "code": code, "message": message(index, code)}
            )
        with suppress(nvml.NVMLError):  # the library was shut down before
            nvml.nvmlEventSetFree(self._events)

    def _index(self, handle: Any) -> int | None:
        """Return the GPU of an event. NVML is asked last: it knows no index of a GPU that has fallen off the bus."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for device in self._devices:
            if ctypes.cast(device.handle, ctypes.c_void_p).value == address:
                return device.index
        nvml: Any = self._devices[0].nvml
        try:
            return int(nvml.nvmlDeviceGetIndex(handle))
        except nvml.NVMLError:
            return None
