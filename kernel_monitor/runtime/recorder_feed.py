"""Messages from the kernel to the recorder, which runs in the sampler and sees neither loaders nor switches.

Each is one JSON line on the sampler's stdin (`docs/messages.md`, *Kernel to sampler*). Nothing here blocks: the client
buffers or drops lines while the pipe is full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..steps.measured_step import Step

FLUSH_S = 0.5
"""Between two sends of values and steps: a killed kernel loses at most this much."""
LOOK_S = 1.0
"""Between two comparisons of the loaders' states and workers with those sent last."""
Message = dict[str, Any]


class RecorderFeed:
    """Sends what changed since the last send. Thread-safe.

    Args:
        send: sends a message to the sampler; must not block.
    """

    def __init__(
        self,
        send: Callable[[Message], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._lock = threading.Lock()  # goodbye and rows come from different threads
        self._rows: list[tuple[float, Mapping[str, float]]] = []
        self._states: Sequence[Mapping[str, Any]] | None = None
        self._epochs: Mapping[str, Any] | None = None
        self._workers: list[int] = []
        self._flushed = self._looked = clock()
        self.recording = False

    def begin(self, facts: Mapping[str, Any]) -> None:
        """A new sampler has started: send it everything."""
        with self._lock:
            self._states, self._epochs, self._workers = None, None, []
            self._looked -= LOOK_S
        self._send({"do": "facts", "facts": dict(facts)})

    def event(self, event: Mapping[str, Any]) -> None:
        """Send an event."""
        if self.recording:
            self._send({"do": "event", "event": dict(event)})

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Send changed facts."""
        if self.recording:
            self._send({"do": "facts", "facts": dict(facts)})

    def steps(self, loader: str, rows: Sequence[Step], dropped: int) -> None:
        """Send finished steps of a loader, with ends in session s; `dropped` more are not among them."""
        if self.recording:
            self._send({"do": "steps", "loader": loader, "rows": rows, "dropped": dropped})

    def epochs(self, past: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Send the counts of the epochs before each loader's newest; `past` is a new object when they changed."""
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
        """Send the loaders' values and states of the row at `row_time` (session s), some at a time."""
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
        """Send the last values and the reason why the session ends."""
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
