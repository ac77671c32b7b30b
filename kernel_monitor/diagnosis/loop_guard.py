"""The running loop as *Diagnose* and *Tune* see it: whether it still steps, and whether anybody changes its loader."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import GainState
    from ..steps.watched_loader import Source
    from ..store import Store

START_S = 5.0  # a loop that ends no step for this long, when the run begins, is not running
PAUSE_S = 30.0
"""A loop that ends no step for this long, later on, has ended; unless another loader of this process steps."""
_OTHERS_S = 300.0  # then it is an evaluation, which may take this long
POLL_S = 0.05
KNOBS = ("workers", "prefetch", "threads")

Outcome = Literal["done", "failed", "cancelled"]


class RunAborted(Exception):
    """A diagnosis or a tune was aborted: carries its state (`failed`, `cancelled`) and the reason."""

    def __init__(self, state: Outcome, message: str) -> None:
        super().__init__(message)
        self.state = state


class LoopContext(NamedTuple):
    """The parts of the monitor that a diagnosis and a tune use."""

    store: Store  # has the figures of the machine
    loaders: Callable[[], list[AnyLoader]]  # the live ones of this process
    sources: Callable[[], list[AnyLoader | Source]]  # these, and what else is watched
    running: Callable[[], bool]
    session_time: Callable[[float], float | None]  # of a time of `time.monotonic`
    add_event: Callable[..., Any]
    start: Callable[[], None]  # starts the sampler; one that runs goes on
    # of a loader's id, what can be predicted of its changes now, as `analysis.results.Gain` in JSON
    gains: Callable[[str], Sequence[GainState]]


def program_ends() -> bool:
    """Return whether the interpreter waits for its last threads: no engine can be made any more."""
    return not threading.main_thread().is_alive()


class LoopGuard:
    """A loop as seen through its loader, which is held weakly: a cell that is run again frees it.

    Args:
        command: `Diagnose` or `Tune`, for its sentences.
    """

    def __init__(self, loader: AnyLoader, context: LoopContext, command: str = "Diagnose") -> None:
        self.id, self.name = loader.id, loader.name
        self.begun = False  # whether it has ended a step since this was made
        self.clicked: str | None = None  # the engine that a person chose meanwhile
        self.turned: str | None = None  # the knobs that a person turned meanwhile
        self.took: set[str] = set()
        self.failures: dict[str, str] = {}
        self.knobs_failure: str | None = None  # why the knobs asked for have no effect
        self.end: RunAborted | None = None
        self._asked: str | None = None  # by us; the loop of an attached loader passes it on, on its own thread
        self._knobs: dict[str, int] | None = None  # asked for by us
        self._in_force = threading.Event()  # these are
        self._first_threads = False  # threads are among them, and there is no engine yet that could have some
        self._loader = weakref.ref(loader)
        self._context, self._command = context, command
        self._thread = 0
        self._wake = threading.Event()
        totals = loader.meter.totals()
        self._start_s = max(START_S, 4 * totals.step_s / totals.steps if totals.steps else 0.0)
        self._steps, self._others = totals.steps, -1
        self._stepped = self._others_stepped = time.monotonic()

    @property
    def live(self) -> AnyLoader:
        """The loader; not to be kept. Raises `RunAborted` where it is gone."""
        loader = self._loader()
        if loader is None:
            raise RunAborted("failed", f"{self.name} is gone: its loop has ended, or its cell was run again.")
        return loader

    @property
    def idle(self) -> float:
        """Seconds since a step ended."""
        return time.monotonic() - self._stepped

    @property
    def knobs_in_force(self) -> bool:
        """Whether the knobs that `turn` asked for are those of the engines."""
        if self._first_threads:  # the engines are made with them: of those that are as usual there is no event
            now, asked = self.live.knobs._asdict(), self._knobs or {}
            return self._in_force.is_set() or all(now[name] == value for name, value in asked.items())
        return self._in_force.is_set()

    def ask(self, engine: str) -> None:
        """Ask for an engine; a person's request of the same moment is made again."""
        self.took.discard(engine)
        self.failures.pop(engine, None)
        self._asked = engine
        self.live.switch(engine)
        self.yield_to_click()

    def turn(self, knobs: Mapping[str, int]) -> None:
        """Ask for knobs. Only those that differ are set: where nobody has set `prefetch`, each engine has its own.

        Raises:
            MonitorError: a value is not accepted.
        """
        live = self.live
        before = live.knobs._asdict()
        changes = {name: value for name, value in knobs.items() if before[name] != value}
        self.knobs_failure, self._knobs = None, dict(knobs)
        self._first_threads = before["threads"] is None and "threads" in changes
        if changes:
            self._in_force.clear()
            live.set(**changes)
        else:
            self._in_force.set()

    def yield_to_click(self) -> None:
        """Ask again for the engine that a person has asked for."""
        clicked = self.clicked
        if clicked is not None and clicked not in self.failures:
            self.live.switch(clicked)

    def cancel(self, why: str) -> None:
        self.end = self.end or RunAborted("cancelled", why)
        self._wake.set()

    def poll(self) -> None:
        """Wait a moment; raises `RunAborted` where the loop ended, its loader was changed, or by `cancel`."""
        self._wake.wait(POLL_S)
        self._wake.clear()
        if self.end is not None:
            raise self.end
        if program_ends():
            raise RunAborted("cancelled", "The program ended.")
        if not self._context.running():
            raise RunAborted("cancelled", "The monitor was stopped.")
        live, now = self.live, time.monotonic()
        totals = live.meter.totals()
        if totals.steps != self._steps:
            self._steps, self._stepped, self.begun = totals.steps, now, True
        others = sum(source.meter.totals().steps for source in self._context.sources() if source is not live)
        if others != self._others:
            self._others, self._others_stepped = others, now
        if not self.begun and self.idle > self._start_s:
            raise RunAborted("failed", self._no_loop())
        evaluates = now - self._others_stepped < PAUSE_S
        pause = _OTHERS_S if evaluates else max(PAUSE_S, 4 * totals.step_s / max(1, totals.steps))
        if self.begun and self.idle > pause:
            raise RunAborted("failed", f"No step has ended for {self.idle:.0f} s: the loop has ended, or it pauses.")

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Note an event of a loader; called on the thread on which it happened."""
        if event["loader"] != self.id:
            return
        kind = event["kind"]
        if kind == "switch-asked" and threading.get_ident() != self._thread and event["target"] != self._asked:
            self.clicked = str(event["target"])
            self.cancel(f"Stopped, as {self.clicked} was chosen meanwhile and stays in use.")
        elif kind == "knobs":
            self._on_knobs(event)
        elif kind == "switch":
            self.took.add(str(event["target"]))
        elif kind == "switch-failed":
            self.failures[str(event["target"])] = str(event["message"])
        self._wake.set()

    def own_thread(self) -> None:
        """Take this thread's requests for our own, not for a person's."""
        self._thread = threading.get_ident()

    def _on_knobs(self, event: Mapping[str, Any]) -> None:
        asked = self._knobs
        if asked is not None and event.get("message") is not None:
            self.knobs_failure = str(event["message"])
        elif asked is not None and all(event[name] == value for name, value in asked.items()):
            self._in_force.set()
        else:
            self.turned = ", ".join(f"{name} {event[name]}" for name in KNOBS if event[name] is not None)
            tells = "engines are compared with the same knobs" if self._command == "Diagnose" else "they stay so"
            self.cancel(f"Stopped, as a knob was turned meanwhile: {tells}.")

    def _no_loop(self) -> str:
        call = self._command.lower()
        return (
            f"No training loop is running: start it, then press {self._command}. (From Python: call "
            f"monitor.{call}(wait=False) in the loop, or monitor.{call}() while the loop runs in a thread.)"
        )
