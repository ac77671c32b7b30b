"""What the flight recorder is told by the kernel: it runs in the sampler, which sees neither loaders nor switches.

One JSON line each down the sampler's stdin (`docs/architecture.md`, *Sampler*). Nothing here waits: lines that the
sampler has no room for are the client's to keep or to drop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader

FLUSH_S = 0.5
"""How often values and steps are sent: a kernel that is killed takes no more than these with it."""
LOOK_S = 1.0
"""How often the loaders' states and workers are compared with those sent last."""
MOST_STEPS_A_SECOND = 200
"""Of one loader; of a faster one evenly chosen steps are sent, and the number of the others."""

Message = dict[str, Any]


class Teller:
    """Sends what is new since the last time. Every method may be called by any thread.

    Args:
        send: takes a message for the sampler; must not wait.
        session_time: seconds into the session for a `time.monotonic()`.
    """

    def __init__(
        self,
        send: Callable[[Message], object],
        session_time: Callable[[float], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._session_time = session_time
        self._clock = clock
        self._lock = threading.Lock()  # a goodbye comes from another thread than the rows
        self._rows: list[tuple[float, Mapping[str, float]]] = []
        self._steps: dict[str, int] = {}
        self._states: Sequence[Mapping[str, Any]] | None = None
        self._workers: list[int] = []
        self._flushed = self._looked = clock()
        self.recording = False

    def greet(self, facts: Mapping[str, Any]) -> None:
        """A sampler has started that knows nothing yet."""
        with self._lock:
            self._states, self._workers = None, []
            self._looked -= LOOK_S
        self._send({"do": "facts", "facts": dict(facts)})

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened."""
        if self.recording:
            self._send({"do": "event", "event": dict(event)})

    def row(
        self,
        row_time: float,
        values: Mapping[str, float],
        states: Sequence[Mapping[str, Any]],
        loaders: Sequence[SwitchableLoader],
    ) -> None:
        """A frame was taken `row_time` seconds into the session, with these values and states of the loaders."""
        now = self._clock()
        with self._lock:
            if values and self.recording:
                self._rows.append((row_time, values))
            if now - self._flushed >= FLUSH_S:
                self._flush(now - self._flushed, loaders)
                self._flushed = now
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._look(states, loaders)

    def goodbye(self, reason: str, loaders: Sequence[SwitchableLoader], states: Sequence[Mapping[str, Any]]) -> None:
        """The session ends on purpose: the last values first, then why."""
        with self._lock:
            self._flush(FLUSH_S, loaders)
            self._look(states, loaders)
        self._send({"do": "goodbye", "reason": reason})

    def _flush(self, seconds: float, loaders: Sequence[SwitchableLoader]) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._send({"do": "values", "rows": rows})
        known, self._steps = self._steps, {}
        for loader in loaders:
            steps, newest = loader.meter.steps_since(known.get(loader.id, 0))
            ended = newest - known.get(loader.id, 0)
            self._steps[loader.id] = newest
            if not steps or not self.recording:
                continue
            most = max(1, round(MOST_STEPS_A_SECOND * seconds))
            chosen = steps if len(steps) <= most else [steps[k * len(steps) // most] for k in range(most)]
            told = [(self._session_time(end), *rest) for end, *rest in chosen]
            self._send({"do": "steps", "loader": loader.id, "rows": told, "dropped": ended - len(told)})

    def _look(self, states: Sequence[Mapping[str, Any]], loaders: Sequence[SwitchableLoader]) -> None:
        workers = sorted(pid for loader in loaders for pid in loader.worker_pids)
        if workers != self._workers:
            self._workers = workers
            self._send({"do": "roles", "workers": workers})
        if self.recording and states != self._states:
            self._states = states
            self._send({"do": "loaders", "loaders": list(states)})
