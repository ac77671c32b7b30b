"""Access to NVML: its GPUs, queries and their tables, the threads that query, and Xid events."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from ...text import log_outside
from ..probe import NAN

# ---- NVML's GPUs, and the base class of queries.

Answer = float | str  # a value, or NVML's reason for giving none
Part = tuple[str, str]  # (last part of a series' name, unit)

RATES_WINDOW_S = 1.0
"""The longest period over which NVML takes its utilisation rates: documented as 1/6 s to 1 s, by product."""
RETRY_S = 10.0  # seconds until a query that NVML refused is repeated

GONE = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
    "GPU_NOT_FOUND",
)
"""NVML's errors after which a GPU answers only once the library has been started again."""


class NvmlError(Exception):
    """There is no GPU to query; the message is the reason, if possible NVML's own text."""


@dataclass
class Device:
    """A GPU."""

    index: int  # NVML's index; of those that NVML does not know, their order
    name: str  # the product's name
    memory_total: int | None  # bytes, or None where NVML does not give it
    nvml: Any = None  # the module pynvml; None for a GPU that NVML does not know
    handle: Any = None  # NVML's handle; None if it gave none
    lost: str = ""  # why NVML gave no handle
    mig: bool = False  # whether it is divided into MIG instances
    gone: bool = False  # whether it answers only once NVML has been started again
    limit: Answer | None = None  # the enforced power limit in W, or why there is none; None before it was read
    throttle: tuple[str, ...] = ()  # reasons that lower the clocks, or did within the last minute
    pids: frozenset[int] | None = None  # the processes of the kernel's tree; None while they are not known
    foreign_pids: bool = False  # whether NVML lists pids of which none exists here

    def refused(self, error: Any) -> str:
        """Return the text of an NVML error; set `gone` if it is one of `GONE`."""
        if any(error.value == getattr(self.nvml, f"NVML_ERROR_{name}", -1) for name in GONE):
            self.gone = True
        return refusal(self.nvml, error)


class Query:
    """A query of some metrics of one GPU, with one call to NVML or a few."""

    period: float = 1.0  # seconds between two readings; 0 is every round
    retry: float = RETRY_S  # seconds until a query is repeated that NVML refused

    def __init__(self, device: Device, group: str, parts: Sequence[Part]) -> None:
        self.device = device
        self.group = group  # the group of its metrics (docs/metrics.md)
        self.parts = tuple(parts)
        self.window = 0.0  # seconds that the newest answer covers
        self.at = NAN  # `time.monotonic()` of the newest answer
        self.due = 0.0
        self.place = 0  # index of its first value in its table
        # First parts of the group's earlier queries; if all of those are refused, this query gives the group's time.
        self.earlier: frozenset[str] = frozenset()
        self._reported = False

    def ask(self, now: float) -> Sequence[Answer]:
        """Return the answers, one per part. Raises pynvml's NVMLError."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what was allocated in NVML."""

    def answers(self, now: float) -> Sequence[Answer]:
        """Return the answers as `ask` does; if that raises, the reason for each part."""
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
                log_outside(logging.getLogger(__name__), "part of a GPU is not measured")
            words = f"{type(error).__name__}: {error}"
        return (words,) * len(self.parts)


def refusal(nvml: ModuleType, error: Any) -> str:
    """Return the text of an NVML error, with the remedy where the text names none."""
    if error.value == getattr(nvml, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", None):
        return f"{error} The driver was updated: reboot, or reload it, then stop and start the monitor."
    return str(error)


def call_first(nvml: ModuleType, names: Sequence[str], *arguments: Any) -> Any:
    """Call the first of these functions that both pynvml and the driver have: either may be older than the other."""
    *preferred, last = [getattr(nvml, name) for name in names if hasattr(nvml, name)]
    for function in preferred:
        with suppress(nvml.NVMLError_FunctionNotFound, nvml.NVMLLibraryMismatchError):
            return function(*arguments)
    return last(*arguments)


def open_devices() -> list[Device]:
    """Start NVML and return its GPUs.

    Raises:
        NvmlError: there is no library, no driver or no GPU.
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
    """Shut the library down, which invalidates all handles."""
    with suppress(nvml.NVMLError):  # it is down already: the driver was unloaded
        nvml.nvmlShutdown()


def uuid_of(device: Device) -> str:
    """Return a GPU's UUID without NVML's `GPU-`, in lower case; empty where NVML gives none."""
    if device.handle is None:
        return ""
    try:
        found = device.nvml.nvmlDeviceGetUUID(device.handle)
    except device.nvml.NVMLError:
        return ""
    text = found.decode() if isinstance(found, bytes) else str(found)
    return text.removeprefix("GPU-").lower()


def index_of(uuid: str) -> int | None:
    """Return NVML's index of this machine's GPU with that UUID (`uuid_of`); None without such a GPU or without NVML."""
    try:
        devices = open_devices()
    except NvmlError:
        return None
    found = next((device.index for device in devices if uuid_of(device) == uuid), None)
    close(devices[0].nvml)
    return found


def name_and_memory(nvml: ModuleType, handle: Any, called: str) -> tuple[str, int | None]:
    """Return the name and the total memory, in bytes, of a GPU or a MIG instance.

    The name is `called`, with the reason, if NVML gives none; the memory is None then.
    """
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        name = f"{called} (no name: {error})"
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None  # the query of the memory gives the reason
    return name.decode() if isinstance(name, bytes) else name, total


def _open(nvml: ModuleType, index: int) -> Device:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        device = Device(index, f"GPU {index}", None, nvml, None)
        device.lost = device.refused(error)
        return device
    return Device(index, *name_and_memory(nvml, handle, f"GPU {index}"), nvml, handle)


# ---- A thread that queries NVML, and the newest answers of one GPU's queries, which another thread reads.

JOIN_S = 3.0  # the longest wait for the threads to return from NVML at the end
SILENT_S = 3.0  # after this long without an answer, the last values are no longer used
SHARE = 0.2  # at most this share of the time is spent in NVML: if a round takes long, rounds come less often


class Table(NamedTuple):
    """Parts and their values; when the parts change, a new table replaces it."""

    parts: tuple[Part, ...]
    values: list[float]


class _GroupTime(NamedTuple):
    """The time of a group's newest answers."""

    at: float  # `time.monotonic()` when the group was read
    window: float  # seconds that the answers cover


class Change(NamedTuple):
    """A part that went missing or came back."""

    gpu: int  # NVML's index
    part: str
    words: str  # the reason, or `is back`


def sentences(changes: Iterable[Change]) -> list[str]:
    """Return sentences on the changes, one for all parts of a GPU that changed for the same reason."""
    together: dict[tuple[int, str], list[str]] = {}
    for gpu, part, words in changes:
        together.setdefault((gpu, words), []).append(part)
    return [f"GPU {gpu} {', '.join(parts)}: {words}" for (gpu, words), parts in together.items()]


class QueryTable:
    """The newest values of some queries, and NVML's reasons for missing ones. One thread writes, any thread reads."""

    def __init__(self, device: Device, queries: Sequence[Query]) -> None:
        self.device = device
        self.reasons: dict[str, str] = {}  # {part: why it is missing}
        self.queries: list[Query] = []
        self.lay_out(queries)

    def lay_out(self, queries: Sequence[Query]) -> None:
        """Replace the queries by these."""
        self.close()
        self.queries = list(queries)
        earlier: dict[str, frozenset[str]] = {}
        parts: list[Part] = []
        for query in queries:
            query.place, query.earlier = len(parts), earlier.get(query.group, frozenset())
            earlier[query.group] = query.earlier | {query.parts[0][0]}
            parts += query.parts
        self.groups = tuple(earlier)  # the groups of the queries, in order
        names = {name for name, _ in parts}
        self.reasons = {name: words for name, words in self.reasons.items() if name in names}
        self.times: dict[str, _GroupTime] = {}  # by group: the time of its first query that has an answer
        self.table = Table(tuple(parts), [NAN] * len(parts))

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        """Make the queries that are due, or will be within `tolerance` (s); return the changes."""
        changes: list[Change] = []
        soon = now + tolerance
        for query in self.queries:
            if query.due <= soon:
                self._ask(query, now, changes)
        return changes

    def _ask(self, query: Query, now: float, changes: list[Change]) -> None:
        values = self.table.values
        refused = known = 0
        for place, ((part, _), answer) in enumerate(zip(query.parts, query.answers(now), strict=False), query.place):
            if isinstance(answer, str):
                values[place] = NAN
                refused += 1
                if self.reasons.get(part) != answer:
                    self.reasons = {**self.reasons, part: answer}
                    changes.append(Change(self.device.index, part, answer))
            else:
                values[place] = answer
                known += answer == answer
                if part in self.reasons:
                    self.reasons = {name: words for name, words in self.reasons.items() if name != part}
                    changes.append(Change(self.device.index, part, "is back"))
        # If NVML refuses only some of the parts, the query is repeated at its period for the others.
        query.due = now + (query.retry if refused == len(query.parts) else query.period)
        if known and query.earlier <= self.reasons.keys():
            self.times[query.group] = _GroupTime(query.at, query.window)

    def close(self) -> None:
        """Close the queries; errors of NVML, which may be down, are ignored."""
        for query in self.queries:
            try:
                query.close()
            except self.device.nvml.NVMLError as error:
                self.device.refused(error)


@dataclass(eq=False)
class QueryThread:
    """A thread that makes all queries of its tables, round after round."""

    name: str  # the thread's name
    subject: str  # the metrics of its queries, for notices while NVML does not answer
    tables: Sequence[QueryTable]  # one or several per GPU
    interval: float  # seconds between the beginnings of two rounds

    def __post_init__(self) -> None:
        self.answered = time.monotonic()  # when the newest answer came
        self.first = threading.Event()  # set after the first round
        self.changes: deque[Change] = deque()  # another thread consumes them
        self.thread = threading.Thread(target=self.rounds, name=self.name, daemon=True)
        self._stop = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """End the rounds after the query that runs."""
        self._stop.set()
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        """Begin a round every `interval` seconds, the first one at once."""
        if interval != self.interval:
            self.interval = interval
            self._wake.set()

    def silent(self, now: float) -> bool:
        """Return whether a call to NVML has blocked this thread for too long."""
        return now - self.answered > max(SILENT_S, 3 * self.interval)

    def rounds(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Make rounds of queries until `stop`, or until `ended()` is true after a round."""
        while not self._stop.is_set():
            began = time.monotonic()
            for table in self.tables:
                changes = table.ask(time.monotonic(), self.interval / 2)
                self.answered = time.monotonic()
                if self._stop.is_set():
                    return
                self.changes.extend(changes)
            self.first.set()
            if ended():
                return
            took = self.answered - began
            self._wake.wait(max(self.interval, took / SHARE) - took)
            self._wake.clear()


# ---- Xid events: errors of a GPU that the driver reports, as notices.

WAIT_MS = 1000  # the longest wait of a call for an event; `stop` takes effect after it

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
"""Short descriptions of the common codes, after NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors)."""


def xid_message(gpu: int | None, code: int) -> str:
    """Return the text of a notice: `GPU 0: Xid 79 (GPU has fallen off the bus)`."""
    which = "a GPU" if gpu is None else f"GPU {gpu}"
    return f"{which}: Xid {code} ({_MEANINGS.get(code, 'see docs.nvidia.com/deploy/xid-errors')})"


class XidThread:
    """A thread that waits for Xid events of all GPUs and calls `notify` with a notice for each."""

    def __init__(self, devices: Sequence[Device], notify: Callable[[dict[str, Any]], None]) -> None:
        self.reasons: dict[int, str] = {}  # {index of a GPU: why its events are not reported}
        self.thread = threading.Thread(target=self._run, name="nvml-xid", daemon=True)
        self._devices = [device for device in devices if device.handle is not None]
        self._notify = notify
        self._stop = threading.Event()

    def start(self) -> None:
        """Register for the events and start the thread, unless no GPU has such events."""
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
        """End the thread within `WAIT_MS`."""
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
                {"level": "warning", "kind": "xid", "gpu": index, "code": code, "message": xid_message(index, code)}
            )
        with suppress(nvml.NVMLError):  # the library was shut down before
            nvml.nvmlEventSetFree(self._events)

    def _index(self, handle: Any) -> int | None:
        """Return the index of an event's GPU; NVML itself has none for a GPU that has fallen off the bus."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for device in self._devices:
            if ctypes.cast(device.handle, ctypes.c_void_p).value == address:
                return device.index
        nvml: Any = self._devices[0].nvml
        try:
            return int(nvml.nvmlDeviceGetIndex(handle))
        except nvml.NVMLError:
            return None
