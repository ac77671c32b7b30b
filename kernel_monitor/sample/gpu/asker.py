"""A thread that asks NVML: some of its calls block for tens of milliseconds, and on a GPU in trouble for ever."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .desk import Change, Desk

SILENT_S = 3.0
"""After this long without an answer the values held are no longer shown."""


class Asker:
    """A thread that asks, round after round.

    A round begins every `interval` seconds; where it takes long, rounds come less often, so that no more than `share`
    of the time is spent in NVML.

    Args:
        name: of the thread.
        subject: what is missing when it does not come back from NVML, in words.
        desks: one per GPU, or several.
        interval: s.
        share: 0 to 1.

    Attributes:
        answered: `time.monotonic()` of the newest answer.
        first: set when every desk was asked once.
        changes: what went missing or came back; another thread takes them out.
    """

    def __init__(self, name: str, subject: str, desks: Sequence[Desk], interval: float, share: float) -> None:
        self.subject = subject
        self.desks = tuple(desks)
        self.interval = interval
        self.answered = time.monotonic()
        self.first = threading.Event()
        self.changes: deque[Change] = deque()
        self.thread = threading.Thread(target=self.rounds, name=name, daemon=True)
        self._share = share
        self._stop = threading.Event()
        self._wake = threading.Event()

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ask no more after what is being asked."""
        self._stop.set()
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        """Begin a round every `interval` seconds, the first one at once."""
        if interval != self.interval:
            self.interval = interval
            self._wake.set()

    def silent(self, now: float) -> bool:
        """Whether NVML has kept this thread for too long."""
        return now - self.answered > max(SILENT_S, 3 * self.interval)

    def rounds(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Ask until `stop`, or until `ended` says so after a round."""
        while not self._stop.is_set():
            began = time.monotonic()
            for desk in self.desks:
                now = time.monotonic()
                changes = desk.ask(now, self.interval / 2)
                self.answered = time.monotonic()
                if self._stop.is_set():
                    return
                self.changes.extend(changes)
            self.first.set()
            if ended():
                return
            took = self.answered - began
            self._wake.wait(max(self.interval, took / self._share) - took)
            self._wake.clear()
