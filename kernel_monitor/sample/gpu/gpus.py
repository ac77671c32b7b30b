"""The series of all GPUs, or the reason why there are none.

Threads of their own query NVML (`NvmlSession`), because any of its calls may block. Frames carry the newest answers.
After a GPU is lost or a driver reloaded, NVML is started again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...text import log_outside
from ..probe import NAN
from . import nvml
from .gauges import Gpm, MigTable, ProcessMemory, ProcessUtilisation, bus_queries, load_queries, slow_queries
from .nvml import (
    JOIN_S,
    SILENT_S,
    Device,
    NvmlError,
    QueryTable,
    QueryThread,
    Table,
    XidThread,
    open_devices,
    sentences,
)

# ---- NVML from one start of the library to its end: its GPUs and the threads that query them.

SLOW_S = 1.0  # period of all queries but utilisation, memory and power


class NvmlSession:
    """The query threads of one start of NVML; `rounds` of the fast one are run by the caller, on its own thread."""

    def __init__(
        self,
        devices: list[nvml.Device],
        interval: float,  # seconds between two rounds of the fast queries
        pids: frozenset[int] | None,  # the processes of the kernel's tree; None while they are not known
        notify: Callable[[dict[str, Any]], None],  # called on the Xid thread with the notice for an event
    ) -> None:
        for device in devices:
            device.pids = pids
        self.migs = [MigTable(device) for device in devices]
        fast, slow, bus = [], [], []
        for device in devices:
            # The first query of a group gives its age and window.
            fast.append(QueryTable(device, load_queries(device)))
            tree = [ProcessMemory(device), ProcessUtilisation(device)]
            slow.append(QueryTable(device, [*slow_queries(device), *tree, Gpm(device)]))
            bus.append(QueryTable(device, bus_queries(device)))
        self.fast = QueryThread("nvml", "load, memory and power", fast, interval)
        self.slow = QueryThread("nvml-slow", "temperatures, clocks and counters", [*self.migs, *slow], SLOW_S)
        self.bus = QueryThread("nvml-bus", "PCIe and NVLink", bus, SLOW_S)
        self.xid = XidThread(devices, notify)
        self.devices = devices
        self.threads = (self.fast, self.slow, self.bus)
        self.tables = [  # of each GPU, with the threads that ask for them
            (device, ((self.fast, fast[which]), (self.slow, slow[which]), (self.bus, bus[which]), (self.slow, mig)))
            for which, (device, mig) in enumerate(zip(devices, self.migs, strict=True))
        ]

    def instances(self, device: Device) -> Sequence[Any]:
        """Return the MIG instances of a GPU."""
        return next(mig.instances for mig in self.migs if mig.device is device)

    def set_processes(self, pids: frozenset[int] | None) -> None:
        """Set the processes of the kernel's tree for all GPUs."""
        for device in self.devices:
            device.pids = pids

    def start(self) -> None:
        """Start all threads but the fast one."""
        self.slow.thread.start()
        self.bus.thread.start()
        self.xid.start()

    def stop(self) -> None:
        """Stop all threads after the queries that run."""
        for thread in self.threads:
            thread.stop()
        self.xid.stop()

    def gone(self) -> bool:
        """Return whether a GPU answers only once NVML has been started again."""
        for device, tables in self.tables:
            load = tables[0][1]
            if device.gone and len(load.reasons) < len(load.table.parts):
                device.gone = False  # it answers
        return any(device.gone for device in self.devices)

    def close(self) -> None:
        """Stop, and shut NVML down unless a thread does not return from it."""
        self.stop()
        started = [one for one in (self.slow.thread, self.bus.thread, self.xid.thread) if one.ident is not None]
        for thread in started:
            thread.join(JOIN_S)
        if any(thread.is_alive() for thread in started):
            return
        for _, tables in self.tables:
            for _, table in tables:
                table.close()
        nvml.close(self.devices[0].nvml)


_FASTEST_S = 0.1  # the shortest period of the fast queries
_SLOWEST_S = 5.0  # their longest period, however rare frames are: the driver keeps its samples for some seconds only
SLOWEST_START_S = 2.0
"""The longest wait of the first hello for NVML; without persistence mode a driver may take longer to start."""
REOPEN_S = 10.0
"""Seconds until NVML is started again after a failure or the loss of a GPU; each failed attempt doubles them."""
_REOPEN_MOST_S = 160.0  # the most that they become
_MOST_CHANGES = 6  # changes that are reported separately
GROUPS = ("gpu", "gpu-slow", "gpu-bus", "gpm", "mig")


class _FrameTable(NamedTuple):
    """A table of queries whose values are in the frames."""

    device: Device
    thread: QueryThread
    queries: QueryTable
    table: Table


class Gpus:
    """The series of all GPUs, one GPU after the other; all methods are for one thread.

    The series may appear after the start (if NVML takes long to answer) and change (MIG).
    """

    def __init__(self, interval: float) -> None:
        self._interval = _round_interval(interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._notices: deque[dict[str, Any]] = deque()
        # Written by the thread, taken over by `refresh`:
        self._opened_session: NvmlSession | None = None
        self._failure: str | None = "NVML has not answered yet"
        self._opened = threading.Event()
        self._pids: frozenset[int] | None = None
        # The state that frames and hello are made of:
        self._session: NvmlSession | None = None
        self._reason: str | None = self._failure
        self._tables: list[_FrameTable] = []
        self._state: list[Any] = []
        self._throttle: dict[int, tuple[str, ...]] = {}
        self._silent: frozenset[QueryThread] = frozenset()

    @property
    def series(self) -> Sequence[tuple[str, str]]:
        """(name, unit) of each value that `read` returns."""
        return [(f"gpu/{row.device.index}/{part}", unit) for row in self._tables for part, unit in row.table.parts]

    def start(self) -> None:
        """Start the threads; wait until NVML has answered every query once, at most `SLOWEST_START_S`."""
        until = time.monotonic() + SLOWEST_START_S
        self._thread.start()
        self._opened.wait(SLOWEST_START_S)
        session = self._opened_session
        for thread in session.threads if session else ():
            thread.first.wait(max(0.0, until - time.monotonic()))
        self.refresh(time.monotonic())

    def stop(self) -> None:
        """Stop the threads. A call that hangs in the driver ends with the process."""
        self._stop.set()
        session = self._opened_session
        if session is not None:
            session.stop()

    def set_interval(self, interval: float) -> None:
        """Set the seconds between frames."""
        self._interval = _round_interval(interval)
        if self._opened_session is not None:
            self._opened_session.fast.set_interval(self._interval)

    def set_processes(self, pids: Iterable[int]) -> None:
        """Set the processes of the kernel's tree, whose memory and utilisation are measured."""
        pids = frozenset(pids)
        if pids != self._pids:
            self._pids = pids
            if self._opened_session is not None:
                self._opened_session.set_processes(pids)

    def notices(self) -> list[dict[str, Any]]:
        """Return the Xid events since the last call: `{"level", "kind": "xid", "gpu", "code", "message"}`."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def refresh(self, now: float) -> list[str]:
        """Take over the threads' changes; return a sentence for each. After any, `hello` and `series` may differ."""
        changes = self._session_changes()
        threads = self._session.threads if self._session else ()
        changes += sentences(thread.changes.popleft() for thread in threads for _ in range(len(thread.changes)))
        changes += self._silence_changes(now)
        state = self._current_state()
        if state != self._state:
            changes = changes or self._throttle_changes() or ["The facts about the GPUs have changed"]
            self._state = state
            self._tables = [
                _FrameTable(device, thread, queries, queries.table)
                for device, tables in (self._session.tables if self._session else ())
                for thread, queries in tables
            ]
        if len(changes) > _MOST_CHANGES:
            changes[_MOST_CHANGES:] = [f"{len(changes) - _MOST_CHANGES} more changes of GPU metrics"]
        return changes

    def hello(self) -> dict[str, Any]:
        """Return `gpus` and `gpu_reason` of the sampler's hello."""
        session = self._session
        if session is None:
            return {"gpus": [], "gpu_reason": self._reason}
        return {
            "gpus": [
                {
                    "index": device.index,
                    "name": device.name,
                    "memory_total": device.memory_total,
                    "reasons": self._reasons(session, device),
                    "throttle": list(device.throttle),
                    "mig": [
                        {"index": instance.index, "name": instance.name, "memory_total": instance.memory_total}
                        for instance in session.instances(device)
                    ],
                }
                for device in session.devices
            ],
            "gpu_reason": None,
        }

    def read(self) -> Sequence[float]:
        """Return the newest values, one per series."""
        values: list[float] = []
        for _, thread, queries, table in self._tables:
            if self._answers(thread) and queries.table is table:
                values += table.values
            else:
                values += [NAN] * len(table.values)
        return values

    def groups(self, now: float) -> list[tuple[str, float, float]]:
        """Return (group, age, window), in s, of each group that has series; NaN for a group without an answer.

        With several GPUs these are the greatest age and the longest window; on each GPU, those of the group's first
        query that NVML answers.
        """
        found: list[tuple[str, float, float]] = []
        for group in GROUPS:
            rows = [row for row in self._tables if group in row.queries.groups]
            times = [row.queries.times.get(group) for row in rows if self._answers(row.thread)]
            ages = [max(0.0, now - time.at) for time in times if time]
            windows = [time.window for time in times if time]
            if rows:
                found.append((group, max(ages, default=NAN), max(windows, default=NAN)))
        return found

    def _answers(self, thread: QueryThread) -> bool:
        return self._reason is None and thread not in self._silent

    def _session_changes(self) -> list[str]:
        """Take over the thread's session or failure; return sentences on what changed."""
        failure, found = self._failure, self._opened_session
        changes: list[str] = []
        if found is not self._session and found is not None and found.fast.first.is_set():
            again = self._session is not None
            changes.append("NVML was started again" if again else f"NVML lists {len(found.devices)} GPU(s)")
            self._session = found
            for thread in found.threads:
                thread.changes.clear()  # parts that NVML refused from the start did not go missing
        if failure is not None and failure != self._reason:
            changes.append(f"GPUs: {failure}")
            self._reason = failure
        elif failure is None and found is not None and found is self._session:
            self._reason = None
        return changes

    def _silence_changes(self, now: float) -> list[str]:
        """Return a sentence for each thread that NVML stopped or began to answer."""
        session = self._session
        if session is None or self._reason is not None:
            return []
        before, self._silent = self._silent, frozenset(thread for thread in session.threads if thread.silent(now))
        return [
            f"NVML does not answer: no {thread.subject}"
            if thread in self._silent
            else f"NVML answers again: {thread.subject}"
            for thread in session.threads
            if (thread in self._silent) != (thread in before)
        ]

    def _throttle_changes(self) -> list[str]:
        """Return a sentence for each GPU whose clocks are lowered for other reasons than before."""
        before, self._throttle = self._throttle, {}
        for device in self._session.devices if self._session else ():
            self._throttle[device.index] = device.throttle
        return [
            f"GPU {index}: clocks lowered: {', '.join(words)}" if words else f"GPU {index}: clocks no longer lowered"
            for index, words in self._throttle.items()
            if words != before.get(index, ())
        ]

    def _current_state(self) -> list[Any]:
        """Return the objects that hello and series depend on; each is replaced when it changes, never mutated."""
        session = self._session
        if session is None:
            return [self._reason]
        state: list[Any] = [session, self._reason, self._silent, session.xid.reasons]
        for device, tables in session.tables:
            state.append(device.throttle)
            for _, queries in tables:
                state += (queries.reasons, queries.table.parts)
        return state

    def _reasons(self, session: NvmlSession, device: Device) -> dict[str, str]:
        """Return the reason for each missing metric of a GPU."""
        reasons: dict[str, str] = {}
        for row in self._tables:
            if row.device is not device:
                continue
            words = self._reason
            if row.thread in self._silent:
                words = words or f"NVML has not answered for {SILENT_S:g} s"
            reasons |= row.queries.reasons if words is None else dict.fromkeys(dict(row.table.parts), words)
        if device.index in session.xid.reasons:
            reasons["xid"] = session.xid.reasons[device.index]
        return reasons

    def _run(self) -> None:
        """Start NVML, query it until it or a GPU fails, and repeat; the thread's function.

        Where it lists no GPU, those of other vendors are queried, until the end.
        """
        pause = REOPEN_S
        while not self._stop.is_set():
            try:
                session = self._open()
            except NvmlError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - a broken driver may raise anything; host metrics go on
                if self._failure is None or not self._opened.is_set():
                    log_outside(logging.getLogger(__name__), "GPUs are not measured")
                self._fail(f"{type(error).__name__}: {error}")
            else:
                pause = self._serve(session, pause)
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, _REOPEN_MOST_S)

    def _open(self) -> NvmlSession:
        """Start NVML; raises its reason where it lists no GPU."""
        return NvmlSession(open_devices(), self._interval, self._pids, self._notices.append)

    def _fail(self, words: str) -> None:
        self._failure = words
        self._opened.set()

    def _serve(self, session: NvmlSession, pause: float) -> float:
        """Query these GPUs until `stop`, or until `pause` seconds after one is gone; return the next pause."""
        gone_at: float | None = None

        def ended() -> bool:
            nonlocal gone_at, pause
            if not session.gone():
                gone_at, pause = None, REOPEN_S
                return self._stop.is_set()
            now = time.monotonic()
            gone_at = now if gone_at is None else gone_at
            return self._stop.is_set() or now - gone_at >= pause

        self._opened_session = session
        session.set_processes(self._pids)  # they may have changed meanwhile
        self._failure = None
        self._opened.set()
        if not self._stop.is_set():
            session.start()
            session.fast.rounds(ended)
        session.close()
        return min(2 * pause, _REOPEN_MOST_S)


def _round_interval(interval: float) -> float:
    """Return the seconds between two rounds of queries if frames come every `interval` seconds."""
    return min(max(interval, _FASTEST_S), _SLOWEST_S)
