"""NVML: its GPUs, how they are asked, and its own words where it tells nothing."""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from ..probe import NAN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

Answer = float | str
"""A value, or why there is none."""

Part = tuple[str, str]
"""(last part of a series' name, unit)."""

RATES_WINDOW_S = 1.0
"""The longest period over which NVML takes its utilisation rates: documented as 1/6 s to 1 s, by product."""

RETRY_S = 10.0
"""A question that NVML refused is asked again after this."""

GONE = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
    "GPU_NOT_FOUND",
)
"""NVML's errors after which a GPU answers again only to a library that was started anew."""


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
        mig: whether it is divided into MIG instances.
        gone: whether it answers only after NVML is started again.
        limit: the enforced power limit in W, or why there is none; None before it was asked.
        throttle: what lowers the clocks, or did within the last minute, in words.
        pids: the processes of the kernel's tree; None while they are not known.
        strangers: whether NVML names processes, but none that is there under its number.
    """

    index: int
    name: str
    memory_total: int | None
    nvml: ModuleType
    handle: Any
    lost: str = ""
    mig: bool = False
    gone: bool = False
    limit: Answer | None = None
    throttle: tuple[str, ...] = ()
    pids: frozenset[int] | None = None
    strangers: bool = False
    gone_codes: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.gone_codes = frozenset(getattr(self.nvml, f"NVML_ERROR_{name}", -1) for name in GONE)

    def words(self, error: Any) -> str:
        """NVML's words for one of its errors; notes whether the GPU has gone."""
        if error.value in self.gone_codes:
            self.gone = True
        return refusal(self.nvml, error)


class Question:
    """Something that NVML is asked about one GPU, with one call or a few.

    Attributes:
        group: what it is read together with (`metrics.GROUPS`).
        parts: the series that it answers.
        period: seconds between two askings; 0 is every round.
        window: seconds that the newest answer covers.
        at: `time.monotonic()` of what the newest answer tells.
        due: when it is to be asked next.
        retry: seconds until a question is asked again that NVML refused.
    """

    group: ClassVar[str]
    period: float = 1.0
    retry: float = RETRY_S

    def __init__(self, device: Device, parts: Sequence[Part]) -> None:
        self.device = device
        self.parts = tuple(parts)
        self.window = 0.0
        self.at = NAN
        self.due = 0.0
        self._told = False

    def ask(self, now: float) -> Sequence[Answer]:
        """The answers, one per part. Raises pynvml's errors."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back to NVML what was allocated."""

    def answers(self, now: float) -> Sequence[Answer]:
        """The answers, one per part: values, or words why there is none."""
        device = self.device
        if device.handle is None:
            return (device.lost,) * len(self.parts)
        self.at = now
        try:
            return self.ask(now)
        except device.nvml.NVMLError as error:
            words = device.words(error)
        except Exception as error:  # noqa: BLE001 - whatever a broken driver brings, the other questions are asked on
            if not self._told:
                self._told = True
                traceback.print_exc()
            words = f"{type(error).__name__}: {error}"
        return (words,) * len(self.parts)


def refusal(nvml: ModuleType, error: Any) -> str:
    """NVML's words, with what to do where the words alone leave a person at a loss."""
    if error.value == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", None):
        return f"{error} The driver was updated: reboot, or reload it, then stop and start the monitor."
    return str(error)


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


def _open(nvml: ModuleType, index: int) -> Device:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        device = Device(index, f"GPU {index}", None, nvml, None)
        device.lost = device.words(error)
        return device
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        name = f"GPU {index} (no name: {error})"
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None  # the reading of the memory gives the reason
    return Device(index, name.decode() if isinstance(name, bytes) else name, total, nvml, handle)
