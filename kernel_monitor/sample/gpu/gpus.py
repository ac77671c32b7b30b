"""All of every GPU, or why there is none.

NVML is asked on threads of its own (`nvml_asker`), and none of its calls may hold up the rest. Frames carry the newest
answers. A GPU that is lost, or a driver that is loaded again, is looked for by starting NVML anew.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ..probe import NAN
from .asker import SILENT_S, Asker
from .desk import Change, Desk, Table, in_words
from .nvml import Device, NvmlError, open_devices
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FASTEST_S = 0.1
"""NVML is asked no more often than this."""
SLOWEST_S = 5.0
"""Nor more seldom than this, however seldom frames are: the driver keeps its samples for some seconds only."""
SLOWEST_START_S = 2.0
"""How long the first hello waits for NVML; without persistence mode a driver may take longer to start."""
REOPEN_S = 10.0
"""NVML is started anew after this where it failed or a GPU is lost; each time in vain, after twice as long."""
REOPEN_MOST_S = 160.0
MOST_WORDS = 6
"""At most so many changes are told one by one."""
GROUPS = ("gpu", "gpu-slow", "gpu-bus", "gpm", "mig")


class _Shown(NamedTuple):
    """A desk as the frames show it."""

    device: Device
    asker: Asker
    desk: Desk
    table: Table


class Gpus:
    """Every series of every GPU, one GPU after the other.

    The series may come after the start (where NVML takes long to answer) and change (MIG). All methods are for one
    thread.

    Args:
        interval: seconds between frames.
    """

    period = 0.0

    def __init__(self, interval: float) -> None:
        self._interval = _asking(interval)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._notices: deque[dict[str, Any]] = deque()
        # Written by the thread, taken over by refresh():
        self._found: Session | None = None
        self._failure: str | None = "NVML has not answered yet"
        self._opened = threading.Event()
        self._pids: frozenset[int] | None = None
        # As the frames and the hello show it:
        self._session: Session | None = None
        self._reason: str | None = self._failure
        self._shown: list[_Shown] = []
        self._grouped: list[tuple[str, Asker, list[Desk]]] = []
        self._marks: list[Any] = []
        self._throttle: dict[int, tuple[str, ...]] = {}
        self._silent: frozenset[Asker] = frozenset()

    @property
    def series(self) -> Sequence[tuple[str, str]]:
        return [(f"gpu/{shown.device.index}/{part}", unit) for shown in self._shown for part, unit in shown.table.parts]

    def start(self) -> None:
        """Start asking; returns when NVML has answered every question once, or after `SLOWEST_START_S`."""
        until = time.monotonic() + SLOWEST_START_S
        self._thread.start()
        self._opened.wait(SLOWEST_START_S)
        session = self._found
        for asker in session.askers if session else ():
            asker.first.wait(max(0.0, until - time.monotonic()))
        self.refresh(time.monotonic())

    def stop(self) -> None:
        """Stop asking. A call that hangs in the driver is left to end with the process."""
        self._stop.set()
        session = self._found
        if session is not None:
            session.stop()

    def set_interval(self, interval: float) -> None:
        """Seconds between frames from now on."""
        self._interval = _asking(interval)
        if self._found is not None:
            self._found.fast.set_interval(self._interval)

    def set_processes(self, pids: Iterable[int]) -> None:
        """The processes of the kernel's tree: of these, memory and utilisation are told."""
        pids = frozenset(pids)
        if pids != self._pids:
            self._pids = pids
            if self._found is not None:
                self._found.set_processes(pids)

    def notices(self) -> list[dict[str, Any]]:
        """The Xid events since the last call: `{"level", "kind": "xid", "gpu", "code", "message"}`."""
        found: list[dict[str, Any]] = []
        while self._notices:
            found.append(self._notices.popleft())
        return found

    def refresh(self, now: float) -> list[str]:
        """Take over what changed, in words; if anything did, `hello` and perhaps `series` say something new."""
        changes = [*self._adopt(), *self._words(), *self._hear(now)]
        marks = self._state()
        if marks != self._marks:
            changes = changes or self._throttled() or ["what NVML says about its GPUs has changed"]
            self._marks = marks
            self._lay_out()
        if len(changes) > MOST_WORDS:
            changes[MOST_WORDS:] = [f"{len(changes) - MOST_WORDS} more changes of GPU metrics"]
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
                        {"index": each.index, "name": each.name, "memory_total": each.memory_total}
                        for each in session.migs[which].instances
                    ],
                }
                for which, device in enumerate(session.devices)
            ],
            "gpu_reason": None,
        }

    def read(self, _now: float, /) -> Sequence[float]:
        values: list[float] = []
        for _, asker, desk, table in self._shown:
            if self._reason is None and desk.table is table and asker not in self._silent:
                values += table.values
            else:
                values += [NAN] * len(table.values)
        return values

    def groups(self, now: float | None = None) -> list[tuple[str, float, float]]:
        """(group, age, window) in s of each group that has series; NaN where it has no answer.

        Of several GPUs, the oldest and the longest; on each, those of the first of the group's questions that NVML
        answers (`nvml_load`, `nvml_state`, `nvml_bus`).
        """
        now = time.monotonic() if now is None else now
        found: list[tuple[str, float, float]] = []
        for group, asker, desks in self._grouped:
            oldest, longest = now, -1.0
            if self._reason is None and asker not in self._silent:
                for desk in desks:
                    reading = desk.readings.get(group)
                    if reading is not None:
                        oldest = min(oldest, reading.at)
                        longest = max(longest, reading.window)
            found.append((group, NAN, NAN) if longest < 0 else (group, now - oldest, longest))
        return found

    def _adopt(self) -> list[str]:
        """Show what was found; in words."""
        failure, found = self._failure, self._found
        changes: list[str] = []
        if found is not self._session and found is not None and found.fast.first.is_set():
            again = self._session is not None
            changes.append("NVML was started anew" if again else f"NVML lists {len(found.devices)} GPU(s)")
            self._session = found
            for asker in found.askers:
                asker.changes.clear()  # what was never there did not go
        if failure is not None and failure != self._reason:
            changes.append(f"GPUs: {failure}")
            self._reason = failure
        elif failure is None and found is not None and found is self._session:
            self._reason = None
        return changes

    def _words(self) -> list[str]:
        """What went missing or came back."""
        found: list[Change] = []
        for asker in self._session.askers if self._session else ():
            while asker.changes:
                found.append(asker.changes.popleft())
        return in_words(found)

    def _hear(self, now: float) -> list[str]:
        """Which askers NVML lets wait; in words where that changed."""
        session = self._session
        if session is None or self._reason is not None:
            return []
        silent = frozenset(asker for asker in session.askers if asker.silent(now))
        before, self._silent = self._silent, silent
        return [
            f"NVML does not answer: no {asker.subject}" if asker in silent else f"NVML answers again: {asker.subject}"
            for asker in session.askers
            if (asker in silent) != (asker in before)
        ]

    def _state(self) -> list[Any]:
        """What the hello and the series depend on; each element is replaced, never changed."""
        session = self._session
        if session is None:
            return [self._reason]
        marks: list[Any] = [session, self._reason, self._silent, session.xid.reasons]
        for device, desks in session.desks:
            marks.append(device.throttle)
            for _, desk in desks:
                marks += (desk.reasons, desk.table.parts)
        return marks

    def _throttled(self) -> list[str]:
        """What lowers the clocks, in words, where that changed."""
        before, self._throttle = self._throttle, {}
        for device in self._session.devices if self._session else ():
            self._throttle[device.index] = device.throttle
        return [
            f"GPU {index}: clocks lowered: {', '.join(words)}" if words else f"GPU {index}: clocks no longer lowered"
            for index, words in self._throttle.items()
            if words != before.get(index, ())
        ]

    def _lay_out(self) -> None:
        self._shown = [
            _Shown(device, asker, desk, desk.table)
            for device, desks in (self._session.desks if self._session else ())
            for asker, desk in desks
        ]

        self._grouped = []
        for group in GROUPS:
            having = [shown for shown in self._shown if group in shown.desk.groups]
            if having:  # each group is one asker's
                self._grouped.append((group, having[0].asker, [shown.desk for shown in having]))

    def _reasons(self, session: Session, device: Device) -> dict[str, str]:
        """Why each missing metric of a GPU is missing."""
        reasons: dict[str, str] = {}
        for shown in self._shown:
            if shown.device is not device:
                continue
            words = self._reason
            if shown.asker in self._silent:
                words = words or f"NVML has not answered for {SILENT_S:g} s"
            reasons |= shown.desk.reasons if words is None else dict.fromkeys(dict(shown.table.parts), words)
        if device.index in session.xid.reasons:
            reasons["xid"] = session.xid.reasons[device.index]
        return reasons

    def _run(self) -> None:
        """The thread: start NVML, ask until it or a GPU fails, and again."""
        pause = REOPEN_S
        while not self._stop.is_set():
            try:
                devices = open_devices()
            except NvmlError as error:
                self._fail(str(error))
            except Exception as error:  # noqa: BLE001 - whatever a broken driver brings, all else goes on
                if self._failure is None or not self._opened.is_set():
                    traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")
            else:
                pause = self._serve(devices, pause)
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, REOPEN_MOST_S)

    def _fail(self, words: str) -> None:
        self._failure = words
        self._opened.set()

    def _serve(self, devices: list[Device], pause: float) -> float:
        """Ask about these until the end, or until `pause` seconds after one has gone; returns the next pause."""
        session = Session(devices, self._interval, self._pids, self._notices.append)
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
        return min(2 * pause, REOPEN_MOST_S)


def _asking(interval: float) -> float:
    """Seconds between two rounds of questions where frames come every `interval` seconds."""
    return min(max(interval, FASTEST_S), SLOWEST_S)
