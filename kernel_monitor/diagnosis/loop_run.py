"""A run beside the training loop, on a thread of its own: settings of its loader deliver in turn and are measured."""

from __future__ import annotations

import _thread
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..analysis.segments import IN_FLIGHT
from ..errors import MonitorError
from ..privacy import error_text
from ..text import log_failed
from .loop_guard import KNOBS, START_S, LoopContext, LoopGuard, Outcome, RunAborted, program_ends
from .trials import Candidate, Trial, trial

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import DiagnosisResult, DiagnosisState
    from ..protocol.states import EngineState
    from ..steps.measured_step import Step

SWITCH_S = 40.0  # an engine that has not delivered for this long after it was asked for is left out
CHANGE_S = 5.0  # the time of a change of engines that `seconds_left` assumes
CHARTS = ("cpu", "gpu", "images", "wait")  # charts whose series the figures of the machine come from
log = logging.getLogger(__name__)


class LoopRun(ABC):
    """One diagnosis or one tune."""

    kind: Literal["diagnose", "tune"]

    def __init__(self, loader: AnyLoader, context: LoopContext, *, total: int) -> None:
        self.ended = threading.Event()
        self._loop = LoopGuard(loader, context, self.kind.capitalize())
        self._context = context
        state = loader.state()
        self._backends: Sequence[EngineState] = state["backends"]
        knobs = loader.knobs
        self._prefetch = knobs.prefetch
        self._first = Candidate(str(state["wanted"] or state["backend"]), knobs.workers, None, knobs.threads)
        self._knobs_were_set = bool(getattr(loader, "knobs_set", True))  # else torch's own iterators delivered
        self._trials: list[Trial] = []
        self._outcome: Outcome = "done"
        self._until = time.monotonic()  # when what is under way will be done, as far as is known
        self.state: DiagnosisState = {
            "kind": self.kind,
            "state": "running",
            "loader": self._loop.id,
            "name": self._loop.name,
            "backend": self._first.engine,
            "done": 0,
            "total": total,
            "seconds_left": None,
            "message": "waiting for the loop to end a step",
            "result": None,
        }

    def start(self) -> None:
        """Return at once, whoever holds the GIL (see `loaders.switching.preparation`)."""
        thread = threading.Thread(target=self._drive, name=f"kernel-monitor-{self.kind}", daemon=True)
        _thread.start_new_thread(thread.start, ())

    def cancel(self, why: str) -> None:
        """Have it end; the loader still goes back to its first setting."""
        self._loop.cancel(why)

    @abstractmethod
    def _measure_all(self) -> None:
        """Let the settings deliver in turn, and measure them; raises `RunAborted`."""

    @abstractmethod
    def _finish(self) -> None:
        """Bring the loader to the setting that is to go on."""

    @abstractmethod
    def _result(self, message: str) -> DiagnosisResult:
        """Return what was found; called where there are trials."""

    @abstractmethod
    def _seconds_left(self) -> float:
        """Return the seconds that it will take, as far as is known."""

    def _drive(self) -> None:
        from ..loaders import listen

        self._loop.own_thread()
        unlisten = listen(self._loop.on_event)
        message = ""
        try:
            try:
                self._context.start()
                while not self._loop.begun:
                    self._poll()
                self._measure_all()
            except RunAborted as end:
                self._outcome, message = end.state, str(end)
            self._finish()
            self._end(message)
        except Exception as error:  # noqa: BLE001 - on a thread of our own: callers wait for `ended`
            log_failed(log, "the %s of %s failed", self.kind, self._loop.name)
            what = "diagnosis" if self.kind == "diagnose" else "tune"
            message = f"The {what} failed: {type(error).__name__}: {error}"
            self.state = {**self.state, "state": "failed", "seconds_left": 0, "message": message}
        finally:
            unlisten()
            self.ended.set()

    def _switch(self, engine: str) -> str | None:
        """Ask for an engine and wait for its first batch; returns why there was none."""
        loop, asked = self._loop, time.monotonic()
        self._set_state(f"switching to {engine}", backend=engine)
        try:
            loop.ask(engine)
        except MonitorError as error:
            return error_text(error)
        while engine not in loop.took and loop.live.backend != engine:
            self._poll()
            if engine in loop.failures:
                return loop.failures[engine]
            if time.monotonic() - asked > SWITCH_S and loop.idle < START_S:
                return f"it did not take over within {SWITCH_S:.0f} s"
        return None

    def _turn(self, candidate: Candidate) -> str | None:
        """Ask for a candidate's knobs and wait until the engines have them; returns why they have not."""
        loop, asked = self._loop, time.monotonic()
        self._set_state(f"setting up {candidate.label}", backend=candidate.engine)
        try:
            loop.turn(self._knobs(candidate))
        except MonitorError as error:
            return error_text(error)
        while not loop.knobs_in_force:
            self._poll()
            if loop.knobs_failure is not None:
                return loop.knobs_failure
            if time.monotonic() - asked > SWITCH_S and loop.idle < START_S:
                return f"its knobs had no effect within {SWITCH_S:.0f} s"
        return None

    def _knobs(self, candidate: Candidate) -> dict[str, int]:
        """Return the knobs of a candidate that can be set here."""
        found = candidate.workers, candidate.prefetch or self._prefetch, candidate.threads
        return {name: value for name, value in zip(KNOBS, found, strict=True) if value is not None}

    def _settle(self, label: str, batches: int, least: float, most: float) -> None:
        """Wait for so many steps, for `least` to `most` seconds: batches that an engine had in advance are no measure
        of its speed.
        """
        steps, now = self._loop.live.meter.totals().steps, time.monotonic()
        wanted, least, most = steps + batches, now + least, now + most
        self._set_state(f"{label} settles")
        while (now := time.monotonic()) < least or (self._loop.live.meter.totals().steps < wanted and now < most):
            self._poll()

    def _measure(
        self, candidate: Candidate, label: str, left: Callable[[Sequence[Step]], float]
    ) -> tuple[Trial, list[Step]]:
        """Measure what delivers now; returns its figures and the steps they are from.

        Args:
            label: what it is called in the progress.
            left: of the steps so far, the seconds that are still to be measured; 0: these are enough.
        """
        loop, begun = self._loop, time.monotonic()
        seen = loop.live.meter.totals().steps
        steps: list[Step] = []
        while (more := left(steps)) > 0:
            self._until = time.monotonic() + more
            self._set_state(f"measuring {label}")
            self._poll()
            if candidate.engine in loop.failures:
                return Trial(candidate.engine, problem=loop.failures[candidate.engine]), []
            new, seen = loop.live.meter.steps_since(seen)
            steps += [step for step in new if step.end - step.step >= begun]  # a GPU's steps may come late
        return self._trial(candidate, steps), steps

    def _trial(self, candidate: Candidate, steps: Sequence[Step], since: int = 0) -> Trial:
        """Return the figures of a candidate's steps; those of the machine are from those after the first `since`."""
        times, store = self._context.session_time, self._context.store
        first = steps[since]
        start, end = times(first.end - first.step) or 0.0, times(steps[-1].end) or 0.0
        rows = store.rows(store.seq_before(start - 1.0), CHARTS)
        return trial(candidate.engine, steps, rows, self._loop.id, start, end)

    def _in_advance(self, candidate: Candidate) -> int:
        """Return how many batches a candidate has in advance."""
        workers = max(1, candidate.workers) if candidate.engine == "torchvision" else 1
        return max(IN_FLIGHT, (candidate.prefetch or self._prefetch) * workers)

    def _go_back(self, to: Candidate, message: str) -> None:
        """Go to an engine; unless a person has asked for another one meanwhile."""
        loop = self._loop
        try:
            if (
                loop.clicked is None
                and not program_ends()
                and (loop.live.state()["wanted"] or loop.live.backend) != to.engine
            ):
                loop.end = None
                asked = self._until = time.monotonic()
                self._set_state(message, backend=to.engine)
                loop.ask(to.engine)
                # A loop that has ended switches in its next iteration.
                while loop.live.backend != to.engine and max(loop.idle, time.monotonic() - asked - SWITCH_S) < START_S:
                    self._poll()
            loop.yield_to_click()
        except RunAborted as end:
            log.debug("nothing more to go back to: %s", end)

    def _end(self, message: str) -> None:
        result = None
        if self._trials:
            result = self._result(message)
            message = message or result["sentence"]
            at = self._context.session_time(time.monotonic())
            if at is not None:
                self._context.add_event("diagnosis", at, loader=self._loop.id, state=self._outcome, result=result)
        self.state = {
            **self.state,
            "state": self._outcome,
            "seconds_left": 0,
            "message": message,
            "result": result,
        }

    def _poll(self) -> None:
        self._loop.poll()
        self._set_state(self.state["message"])

    def _set_state(self, message: str, **changes: Any) -> None:
        state: DiagnosisState = {**self.state, "message": message, **changes}  # type: ignore[typeddict-item]
        state["seconds_left"] = self._seconds_left()
        if state != self.state:
            self.state = state
