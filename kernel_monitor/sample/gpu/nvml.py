"""NVML: its GPUs, queries with its own words where it gives no value, and the threads that make them."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from ..probe import NAN

# ---- NVML: its GPUs, the base class of queries, and NVML's own words where it gives no value.

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


# ---- A thread that queries NVML, and the newest answers of one GPU's queries, which another thread reads.

SILENT_S = 3.0  # after this long without an answer the values held are no longer shown
SHARE = 0.2  # at most this share of the time is spent in NVML: where a round takes long, rounds come less often


class Table(NamedTuple):
    """Parts and their values, which go together: when the parts change, there is another table."""

    parts: tuple[Part, ...]
    values: list[float]


class _GroupTime(NamedTuple):
    """When a group was read (`time.monotonic()`) and what time that covers, in s."""

    at: float
    window: float


class Change(NamedTuple):
    """A part that went missing, with the reason, or came back."""

    gpu: int
    part: str
    words: str


def in_words(changes: Iterable[Change]) -> list[str]:
    """A sentence for all parts of a GPU that changed for the same reason."""
    together: dict[tuple[int, str], list[str]] = {}
    for gpu, part, words in changes:
        together.setdefault((gpu, words), []).append(part)
    return [f"GPU {gpu} {', '.join(parts)}: {words}" for (gpu, words), parts in together.items()]


class QueryTable:
    """The newest values of some queries, and NVML's reasons for those that are missing. Written by one thread."""

    def __init__(self, device: Device, queries: Sequence[Query]) -> None:
        self.device = device
        self.reasons: dict[str, str] = {}  # by part, why it is missing
        self.queries: list[Query] = []
        self.lay_out(queries)

    def lay_out(self, queries: Sequence[Query]) -> None:
        """Have these queries from now on."""
        self.close()
        self.queries = list(queries)
        earlier: dict[str, frozenset[str]] = {}
        parts: list[Part] = []
        for query in queries:
            query.place, query.earlier = len(parts), earlier.get(query.group, frozenset())
            earlier[query.group] = query.earlier | {query.parts[0][0]}
            parts += query.parts
        self.groups = tuple(earlier)  # of the queries, in order
        names = {name for name, _ in parts}
        self.reasons = {name: words for name, words in self.reasons.items() if name in names}
        self.times: dict[str, _GroupTime] = {}  # of the first of a group's queries that has an answer
        self.table = Table(tuple(parts), [NAN] * len(parts))

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        """Ask what is due, or will be within `tolerance` (s); returns what changed."""
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
        # Where NVML refuses only some of the parts, the query is repeated for the others.
        query.due = now + (query.retry if refused == len(query.parts) else query.period)
        if known and query.earlier <= self.reasons.keys():
            self.times[query.group] = _GroupTime(query.at, query.window)

    def close(self) -> None:
        """Give everything back to NVML, as far as it is there to take it."""
        for query in self.queries:
            try:
                query.close()
            except self.device.nvml.NVMLError as error:
                self.device.refused(error)


@dataclass(eq=False)
class QueryThread:
    """A thread that asks all queries of its tables, round after round."""

    name: str  # of the thread
    subject: str  # what is missing while NVML does not answer, in words
    tables: Sequence[QueryTable]  # one per GPU, or several
    interval: float  # seconds between the beginnings of two rounds

    def __post_init__(self) -> None:
        self.answered = time.monotonic()  # when the newest answer came
        self.first = threading.Event()  # set when every table was asked once
        self.changes: deque[Change] = deque()  # another thread takes them out
        self.thread = threading.Thread(target=self.rounds, name=self.name, daemon=True)
        self._stop = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Ask no more after the query that runs."""
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
        """Ask until `stop`, or until `ended()` is true after a round."""
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
