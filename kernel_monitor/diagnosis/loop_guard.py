"""Watches the loop under diagnosis: whether it still steps, and whether anybody changes its loader meanwhile."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..protocol.analysis_states import GainState
    from ..steps.sources import Source
    from ..store import Store

START_S = 5.0  # a loop that ends no step for this long, when the diagnosis begins, is not running
PAUSE_S = 30.0
"""A loop that ends no step for this long, later on, has ended; unless another loader of this process steps."""
OTHERS_S = 300.0  # then it is an evaluation, which may take this long
POLL_S = 0.05
NO_LOOP = (
    "No training loop is running: start it, then press Diagnose. (From Python: call monitor.diagnose(wait=False) "
    "in the loop, or monitor.diagnose() while the loop runs in a thread.)"
)


Outcome = Literal["done", "failed", "cancelled"]


class DiagnosisAborted(Exception):
    """The diagnosis was aborted: carries its state (`failed`, `cancelled`) and the reason."""

    def __init__(self, state: Outcome, message: str) -> None:
        super().__init__(message)
        self.state = state


class Stage(NamedTuple):
    """What a diagnosis needs of the monitor."""

    store: Store  # has the figures of the machine
    loaders: Callable[[], list[SwitchableLoader]]  # the live ones of this process
    sources: Callable[[], list[SwitchableLoader | Source]]  # these, and what else is watched
    running: Callable[[], bool]
    session_time: Callable[[float], float | None]  # of a time of `time.monotonic`
    add_event: Callable[..., Any]
    start: Callable[[], None]  # starts the sampler; one that runs goes on
    # of a loader's id, what can be predicted of its changes now, as `analysis.results.Gain` in JSON
    gains: Callable[[str], Sequence[GainState]]


class LoopGuard:
    """A loop as seen through its loader, which is held weakly: a cell that is run again frees it."""

    def __init__(self, loader: SwitchableLoader, stage: Stage) -> None:
        self.id, self.name = loader.id, loader.name
        self.begun = False  # whether it has ended a step since this was made
        self.clicked: str | None = None
        self.took: set[str] = set()
        self.failures: dict[str, str] = {}
        self.end: DiagnosisAborted | None = None
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
        """The loader; not to be kept. Raises `DiagnosisAborted` where it is gone."""
        loader = self._loader()
        if loader is None:
            raise DiagnosisAborted("failed", f"{self.name} is gone: its loop has ended, or its cell was run again.")
        return loader

    @property
    def idle(self) -> float:
        """Seconds since a step ended."""
        return time.monotonic() - self._stepped

    def ask(self, engine: str) -> None:
        """Ask for an engine; a person's request of the same moment is made again."""
        self.took.discard(engine)
        self.failures.pop(engine, None)
        self.live.switch(engine)
        self.yield_to_click()

    def yield_to_click(self) -> None:
        """Ask again for the engine that a person has asked for."""
        clicked = self.clicked
        if clicked is not None and clicked not in self.failures:
            self.live.switch(clicked)

    def cancel(self, why: str) -> None:
        self.end = self.end or DiagnosisAborted("cancelled", why)
        self._wake.set()

    def poll(self) -> None:
        """Wait a moment; raises `DiagnosisAborted` where the loop ended, its loader was changed, or by `cancel`."""
        self._wake.wait(POLL_S)
        self._wake.clear()
        if self.end is not None:
            raise self.end
        if not self._stage.running():
            raise DiagnosisAborted("cancelled", "The monitor was stopped.")
        live, now = self.live, time.monotonic()
        totals = live.meter.totals()
        if totals.steps != self._steps:
            self._steps, self._stepped, self.begun = totals.steps, now, True
        others = sum(source.meter.totals().steps for source in self._stage.sources() if source is not live)
        if others != self._others:
            self._others, self._others_stepped = others, now
        if not self.begun and self.idle > self._start_s:
            raise DiagnosisAborted("failed", NO_LOOP)
        evaluates = now - self._others_stepped < PAUSE_S
        pause = OTHERS_S if evaluates else max(PAUSE_S, 4 * totals.step_s / max(1, totals.steps))
        if self.begun and self.idle > pause:
            raise DiagnosisAborted(
                "failed", f"No step has ended for {self.idle:.0f} s: the loop has ended, or it pauses."
            )

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Note an event of a loader; called on the thread on which it happened."""
        if event["loader"] != self.id:
            return
        kind = event["kind"]
        if kind == "switch-asked" and threading.get_ident() != self._thread:
            self.clicked = str(event["target"])
            self.cancel(f"Stopped, as {self.clicked} was chosen meanwhile and stays in use.")
        elif kind == "knobs":
            self.cancel("Stopped, as a knob was turned meanwhile: engines are compared with the same knobs.")
        elif kind == "switch":
            self.took.add(str(event["target"]))
        elif kind == "switch-failed":
            self.failures[str(event["target"])] = str(event["message"])
        self._wake.set()

    def own_thread(self) -> None:
        """Take this thread's requests for our own, not for a person's."""
        self._thread = threading.get_ident()
