"""The running loop as *Diagnose* sees it: whether it steps, and what other people do to its loader."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..store import Store
    from .sampling import Sampling

START_S = 5.0
"""A loop that ends no step for this long, when the diagnosis begins, is not running."""
PAUSE_S = 30.0
"""A loop that ends no step for this long, later on, has ended; unless another loader of this process steps."""
OTHERS_S = 300.0
"""Then it is an evaluation, which may take this long."""
POLL_S = 0.05
NO_LOOP = (
    "No training loop is running: start it, then press Diagnose. (From Python: call monitor.diagnose(wait=False) "
    "in the loop, or monitor.diagnose() while the loop runs in a thread.)"
)


class Ended(Exception):
    """The diagnosis comes to no end: the state that it is in, and why."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class Stage(Protocol):
    """What a diagnosis needs of the monitor."""

    store: Store
    _sampling: Sampling

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def _gains(self, loader: str) -> list[dict[str, Any]]: ...


class Loop:
    """A loop as seen through its loader: whether it steps, and what others do to it.

    The loader is held weakly: a cell that is run again frees it.
    """

    def __init__(self, loader: SwitchableLoader, stage: Stage) -> None:
        self.id, self.name = loader.id, loader.name
        self.begun = False  # whether it has ended a step since this was made
        self.clicked: str | None = None
        self.took: set[str] = set()
        self.failures: dict[str, str] = {}
        self.end: Ended | None = None
        self._loader = weakref.ref(loader)
        self._stage = stage
        self._thread = 0
        self._wake = threading.Event()
        totals = loader.meter.totals()
        self._start_s = max(START_S, 4 * totals.step_s / totals.steps if totals.steps else 0.0)
        self._steps, self._others = totals.steps, -1
        self._stepped = self._others_stepped = time.monotonic()

    @property
    def live(self) -> SwitchableLoader:
        """The loader; not to be kept.

        Raises:
            Ended: it is gone.
        """
        loader = self._loader()
        if loader is None:
            raise Ended("failed", f"{self.name} is gone: its loop has ended, or its cell was run again.")
        return loader

    @property
    def idle(self) -> float:
        """Seconds since a step ended."""
        return time.monotonic() - self._stepped

    def ask(self, engine: str) -> None:
        """Ask for an engine; what a person asked for in the same moment comes back."""
        self.took.discard(engine)
        self.failures.pop(engine, None)
        self.live.switch(engine)
        self.yield_to_click()

    def yield_to_click(self) -> None:
        """See to it that what a person asked for stands."""
        clicked = self.clicked
        if clicked is not None and clicked not in self.failures:
            self.live.switch(clicked)

    def cancel(self, why: str) -> None:
        """Have `poll` raise."""
        self.end = self.end or Ended("cancelled", why)
        self._wake.set()

    def poll(self) -> None:
        """Wait a moment.

        Raises:
            Ended: no more is to be expected.
        """
        self._wake.wait(POLL_S)
        self._wake.clear()
        if self.end is not None:
            raise self.end
        if not self._stage.running:
            raise Ended("cancelled", "The monitor was stopped.")
        live, now = self.live, time.monotonic()
        if (steps := live.meter.totals().steps) != self._steps:
            self._steps, self._stepped, self.begun = steps, now, True
        others = sum(one.meter.totals().steps for one in self._stage._sampling.following.sources() if one is not live)
        if others != self._others:
            self._others, self._others_stepped = others, now
        if not self.begun and self.idle > self._start_s:
            raise Ended("failed", NO_LOOP)
        evaluates = now - self._others_stepped < PAUSE_S
        if self.begun and self.idle > (OTHERS_S if evaluates else self._pause_s()):
            raise Ended("failed", f"No step has ended for {self.idle:.0f} s: the loop has ended, or it pauses.")

    def heard(self, event: Mapping[str, Any]) -> None:
        """An event of a loader, on the thread on which it happened."""
        if event["loader"] != self.id:
            return
        kind = event["kind"]
        if kind == "switch-asked" and threading.get_ident() != self._thread:
            self.clicked = str(event["target"])
            self.cancel(f"{self.clicked} was asked for meanwhile: that stands.")
        elif kind == "knobs":
            self.cancel("A knob was turned meanwhile: the engines would not have been measured alike.")
        elif kind == "switch":
            self.took.add(str(event["target"]))
        elif kind == "switch-failed":
            self.failures[str(event["target"])] = str(event["message"])
        self._wake.set()

    def belongs_here(self) -> None:
        """What this thread asks for is no click."""
        self._thread = threading.get_ident()

    def _pause_s(self) -> float:
        totals = self.live.meter.totals()
        return max(PAUSE_S, 4 * totals.step_s / max(1, totals.steps))
