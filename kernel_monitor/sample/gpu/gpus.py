"""All series of every GPU, or why there is none.

NVML is queried on threads of its own (`nvml_session`), because any of its calls may block. Frames carry the newest
answers. After a GPU is lost or a driver reloaded, NVML is started again.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..probe import NAN
from . import nvml
from .gauges import Gpm, MigTable, bus_queries, load_queries, slow_queries
from .gpu_processes import ProcessMemory, ProcessUtilisation
from .nvml import SILENT_S, Device, NvmlError, QueryTable, QueryThread, Table, in_words, open_devices
from .xid import XidWatch

# ---- NVML from one start of the library to its end: its GPUs and the threads that query them.

SLOW_S = 1.0  # how often everything but utilisation, memory and power is read
JOIN_S = 3.0  # how long the threads have to come back from NVML at the end


class NvmlSession:
    """The threads, of which the fast one is the caller's own."""

    def __init__(
        self,
        devices: list[nvml.Device],
        interval: float,  # seconds between two rounds of the fast queries
        pids: frozenset[int] | None,  # the processes of the kernel's tree, if they are known
        notify: Callable[[dict[str, Any]], None],  # called on a thread of its own with the notice for an Xid event
    ) -> None:
        self.devices = devices
        self.set_processes(pids)
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
        self.threads = (self.fast, self.slow, self.bus)
        self.xid = XidWatch(devices, notify)
        self.tables = [
            (device, ((self.fast, fast[which]), (self.slow, slow[which]), (self.bus, bus[which]), (self.slow, mig)))
            for which, (device, mig) in enumerate(zip(devices, self.migs, strict=True))
        ]

    def set_processes(self, pids: frozenset[int] | None) -> None:
        for device in self.devices:
            device.pids = pids

    def start(self) -> None:
        """Start all threads but the fast one, which is for the caller: `fast.rounds`."""
        self.slow.thread.start()
        self.bus.thread.start()
        self.xid.start()

    def stop(self) -> None:
        """Ask no more."""
        for thread in self.threads:
            thread.stop()
        self.xid.stop()

    def gone(self) -> bool:
        """Return whether a GPU answers again only when NVML is started again."""
        for device, tables in self.tables:
            load = tables[0][1]
            if device.gone and len(load.reasons) < len(load.table.parts):
                device.gone = False  # it answers
        return any(device.gone for device in self.devices)

    def close(self) -> None:
        """Stop, and shut NVML down unless a thread does not come back from it."""
        self.stop()
        threads = [self.slow.thread, self.bus.thread, self.xid.thread]
        for thread in threads:
            if thread.ident is not None:
                thread.join(JOIN_S)
        if any(thread.is_alive() for thread in threads):
            return
        for _, tables in self.tables:
            for _, table in tables:
                table.close()
        nvml.close(self.devices[0].nvml)


_FASTEST_S = 0.1  # NVML is queried no more often than this
_SLOWEST_S = 5.0  # nor more seldom, however rare frames are: the driver keeps its samples for some seconds only
SLOWEST_START_S = 2.0
"""How long the first hello waits for NVML; without persistence mode a driver may take longer to start."""
REOPEN_S = 10.0
"""NVML is started again after this where it failed or a GPU is lost; after each vain attempt, twice as late."""
_REOPEN_MOST_S = 160.0
_MOST_CHANGES = 6  # changes that are reported separately
GROUPS = ("gpu", "gpu-slow", "gpu-bus", "gpm", "mig")


class _Shown(NamedTuple):
    """A table of queries as the frames show it."""

    device: Device
    thread: QueryThread
    queries: QueryTable
    table: Table


class Gpus:
    """Every series of every GPU, one GPU after the other; all methods are for one thread.

    The series may come after the start (where NVML takes long to answer) and change (MIG).
    """

    def __init__(self, interval: float) -> None:
        self._interval = _round_interval(interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._notices: deque[dict[str, Any]] = deque()
        # Written by the thread, taken over by refresh():
        self._found: NvmlSession | None = None
        self._failure: str | None = "NVML has not answered yet"
        self._opened = threading.Event()
        self._pids: frozenset[int] | None = None
        # As the frames and the hello show it:
        self._session: NvmlSession | None = None
        self._reason: str | None = self._failure
        self._shown: list[_Shown] = []
        self._state: list[Any] = []
        self._throttle: dict[int, tuple[str, ...]] = {}
        self._silent: frozenset[QueryThread] = frozenset()

    @property
    def series(self) -> Sequence[tuple[str, str]]:
        return [(f"gpu/{shown.device.index}/{part}", unit) for shown in self._shown for part, unit in shown.table.parts]

    def start(self) -> None:
        """Start the threads; returns when NVML has answered every query once, or after `SLOWEST_START_S`."""
        until = time.monotonic() + SLOWEST_START_S
        self._thread.start()
        self._opened.wait(SLOWEST_START_S)
        session = self._found
        for thread in session.threads if session else ():
            thread.first.wait(max(0.0, until - time.monotonic()))
        self.refresh(time.monotonic())

    def stop(self) -> None:
        """Stop the threads. A call that hangs in the driver is left to end with the process."""
        self._stop.set()
        session = self._found
        if session is not None:
            session.stop()

    def set_interval(self, interval: float) -> None:
        """Seconds between frames from now on."""
        self._interval = _round_interval(interval)
        if self._found is not None:
            self._found.fast.set_interval(self._interval)

    def set_processes(self, pids: Iterable[int]) -> None:
        """The processes of the kernel's tree, whose memory and utilisation are measured."""
        pids = frozenset(pids)
        if pids != self._pids:
            self._pids = pids
            if self._found is not None:
                self._found.set_processes(pids)

    def notices(self) -> list[dict[str, Any]]:
        """The Xid events since the last call: `{"level", "kind": "xid", "gpu", "code", "message"}`."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def refresh(self, now: float) -> list[str]:
        """Take over what changed; returns the changes in words. With any, `hello` and perhaps `series` are new."""
        changes = self._adopt()
        threads = self._session.threads if self._session else ()
        changes += in_words(thread.changes.popleft() for thread in threads for _ in range(len(thread.changes)))
        changes += self._silence_changes(now)
        state = self._current_state()
        if state != self._state:
            changes = changes or self._throttle_changes() or ["NVML's facts about its GPUs have changed"]
            self._state = state
            self._shown = [
                _Shown(device, thread, queries, queries.table)
                for device, tables in (self._session.tables if self._session else ())
                for thread, queries in tables
            ]
        if len(changes) > _MOST_CHANGES:
            changes[_MOST_CHANGES:] = [f"{len(changes) - _MOST_CHANGES} more changes of GPU metrics"]
        return changes

    def hello(self) -> dict[str, Any]:
        """`gpus` and `gpu_reason` of the sampler's hello."""
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
                        for instance in mig.instances
                    ],
                }
                for device, mig in zip(session.devices, session.migs, strict=True)
            ],
            "gpu_reason": None,
        }

    def read(self) -> Sequence[float]:
        """The newest values, one per series."""
        values: list[float] = []
        for _, thread, queries, table in self._shown:
            if self._answers(thread) and queries.table is table:
                values += table.values
            else:
                values += [NAN] * len(table.values)
        return values

    def groups(self, now: float) -> list[tuple[str, float, float]]:
        """(group, age, window) in s of each group that has series; NaN where it has no answer.

        Of several GPUs, the oldest and the longest; on each, those of the first of the group's queries that NVML
        answers.
        """
        found: list[tuple[str, float, float]] = []
        for group in GROUPS:
            having = [shown for shown in self._shown if group in shown.queries.groups]
            times = [shown.queries.times.get(group) for shown in having if self._answers(shown.thread)]
            ages = [max(0.0, now - time.at) for time in times if time]
            windows = [time.window for time in times if time]
            if having:
                found.append((group, max(ages, default=NAN), max(windows, default=NAN)))
        return found

    def _answers(self, thread: QueryThread) -> bool:
        return self._reason is None and thread not in self._silent

    def _adopt(self) -> list[str]:
        """Show the session that the thread has; returns in words what is new."""
        failure, found = self._failure, self._found
        changes: list[str] = []
        if found is not self._session and found is not None and found.fast.first.is_set():
            again = self._session is not None
            changes.append("NVML was started again" if again else f"NVML lists {len(found.devices)} GPU(s)")
            self._session = found
            for thread in found.threads:
                thread.changes.clear()  # parts that were never there did not go missing
        if failure is not None and failure != self._reason:
            changes.append(f"GPUs: {failure}")
            self._reason = failure
        elif failure is None and found is not None and found is self._session:
            self._reason = None
        return changes

    def _silence_changes(self, now: float) -> list[str]:
        """Threads that NVML stopped or began to answer."""
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
        """GPUs whose clocks are lowered for other reasons than before."""
        before, self._throttle = self._throttle, {}
        for device in self._session.devices if self._session else ():
            self._throttle[device.index] = device.throttle
        return [
            f"GPU {index}: clocks lowered: {', '.join(words)}" if words else f"GPU {index}: clocks no longer lowered"
            for index, words in self._throttle.items()
            if words != before.get(index, ())
        ]

    def _current_state(self) -> list[Any]:
        """Return what the hello and the series depend on; each element is replaced, never changed."""
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
        """Return why each missing metric of a GPU is missing."""
        reasons: dict[str, str] = {}
        for shown in self._shown:
            if shown.device is not device:
                continue
            words = self._reason
            if shown.thread in self._silent:
                words = words or f"NVML has not answered for {SILENT_S:g} s"
            reasons |= shown.queries.reasons if words is None else dict.fromkeys(dict(shown.table.parts), words)
        if device.index in session.xid.reasons:
            reasons["xid"] = session.xid.reasons[device.index]
        return reasons

    def _run(self) -> None:
        """The thread: start NVML, query it until it or a GPU fails, and again."""
        pause = REOPEN_S
        while not self._stop.is_set():
            try:
                devices = open_devices()
            except NvmlError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - a broken driver may raise anything; host metrics go on
                if self._failure is None or not self._opened.is_set():
                    traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")
            else:
                pause = self._serve(devices, pause)
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, _REOPEN_MOST_S)

    def _fail(self, words: str) -> None:
        self._failure = words
        self._opened.set()

    def _serve(self, devices: list[Device], pause: float) -> float:
        """Query these until the end, or until `pause` seconds after a GPU has gone; returns the next pause."""
        session = NvmlSession(devices, self._interval, self._pids, self._notices.append)
        gone_at: float | None = None

        def ended() -> bool:
            nonlocal gone_at, pause
            if not session.gone():
                gone_at, pause = None, REOPEN_S
                return self._stop.is_set()
            now = time.monotonic()
            gone_at = now if gone_at is None else gone_at
            return self._stop.is_set() or now - gone_at >= pause

        self._found = session
        session.set_processes(self._pids)  # they may have come meanwhile
        self._failure = None
        self._opened.set()
        if not self._stop.is_set():
            session.start()
            session.fast.rounds(ended)
        session.close()
        return min(2 * pause, _REOPEN_MOST_S)


def _round_interval(interval: float) -> float:
    """Seconds between two rounds of queries where frames come every `interval` seconds."""
    return min(max(interval, _FASTEST_S), _SLOWEST_S)
