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
    from ..steps.records import Step

FLUSH_S = 0.5
"""How often values are sent, and steps: a kernel that is killed takes no more than these with it."""
LOOK_S = 1.0
"""How often the loaders' states and workers are compared with those sent last."""
Message = dict[str, Any]


class Teller:
    """Sends what is new since the last time. Every method may be called by any thread.

    Args:
        send: takes a message for the sampler; must not wait.
    """

    def __init__(
        self,
        send: Callable[[Message], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()  # a goodbye comes from another thread than the rows
        self._rows: list[tuple[float, Mapping[str, float]]] = []
        self._states: Sequence[Mapping[str, Any]] | None = None
        self._epochs: Mapping[str, Any] | None = None
        self._workers: list[int] = []
        self._flushed = self._looked = clock()
        self.recording = False

    def greet(self, facts: Mapping[str, Any]) -> None:
        """A sampler has started that knows nothing yet."""
        with self._lock:
            self._states, self._epochs, self._workers = None, None, []
            self._looked -= LOOK_S
        self._send({"do": "facts", "facts": dict(facts)})

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened."""
        if self.recording:
            self._send({"do": "event", "event": dict(event)})

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Something of what was said in the greeting is another."""
        if self.recording:
            self._send({"do": "facts", "facts": dict(facts)})

    def steps(self, loader: str, rows: Sequence[Step], dropped: int) -> None:
        """Steps of a loader ended, their ends in session s; `dropped` of them are not among these."""
        if self.recording:
            self._send({"do": "steps", "loader": loader, "rows": rows, "dropped": dropped})

    def epochs(self, past: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """The counts of the epochs before each loader's newest; another object when they have changed."""
        if self.recording and past is not self._epochs:
            self._epochs = past
            self._send({"do": "epochs", "epochs": dict(past)})

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
                self._flush()
                self._flushed = now
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._look(states, loaders)

    def goodbye(self, reason: str, loaders: Sequence[SwitchableLoader], states: Sequence[Mapping[str, Any]]) -> None:
        """The session ends on purpose: the last values first, then why."""
        with self._lock:
            self._flush()
            self._look(states, loaders)
        self._send({"do": "goodbye", "reason": reason})

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._send({"do": "values", "rows": rows})

    def _look(self, states: Sequence[Mapping[str, Any]], loaders: Sequence[SwitchableLoader]) -> None:
        workers = sorted(pid for loader in loaders for pid in loader.worker_pids)
        if workers != self._workers:
            self._workers = workers
            self._send({"do": "roles", "workers": workers})
        if self.recording and states != self._states:
            self._states = states
            self._send({"do": "loaders", "loaders": list(states)})
