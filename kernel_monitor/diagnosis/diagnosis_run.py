"""One *Diagnose*: each engine delivers to the running loop for some seconds, then the first one goes on."""

from __future__ import annotations

import _thread
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..analysis.counted_steps import flagged
from ..analysis.switches import IN_FLIGHT, REPLAYS
from ..errors import MonitorError
from ..paths import error_text
from .loop_guard import START_S, DiagnosisAborted, LoopGuard, Outcome
from .trials import Trial, covered, diagnosis, step_rows, trial

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..protocol.analysis_states import DiagnosisState, GainState
    from ..protocol.states import EngineState
    from ..steps.measured_step import Step
    from .loop_guard import Stage

ENOUGH_STEPS = 20  # for so many steps an engine is measured longer than it was asked for
LONGEST_S = 25.0  # but no longer than this; nor is it waited for steps that count while those of warm-up take so long
SWITCH_S = 40.0  # an engine that has not delivered for this long after it was asked for is left out
SETTLE_S = (0.5, 6.0)
"""The least and the most that is not measured after an engine's first batch, while its batches in advance are used."""
CHANGE_S = 5.0  # the time of a change of engines that `seconds_left` assumes
CHARTS = ("cpu", "gpu", "images", "wait")  # charts whose series the figures of the machine come from
log = logging.getLogger(__name__)


class DiagnosisRun:
    """One diagnosis, on a thread of its own; arguments as for `DiagnoseCommand.start`."""

    def __init__(self, loader: SwitchableLoader, stage: Stage, *, seconds: float, confirmed: bool) -> None:
        self.ended = threading.Event()
        self._loop = LoopGuard(loader, stage)
        self._stage = stage
        self._seconds = seconds
        state = loader.state()
        self._first = self._back_to = str(state["wanted"] or state["backend"])
        self._engines, self._cannot = _engines(state["backends"], self._first, confirmed=confirmed)
        self._trials: list[Trial] = []
        self._predicted: Sequence[GainState] = []
        self._until = time.monotonic() + seconds  # when the engine under measurement will be done, as far as is known
        self.state: DiagnosisState = {
            "state": "running",
            "loader": self._loop.id,
            "name": self._loop.name,
            "backend": self._first,
            "done": 0,
            "total": len(self._engines),
            "seconds_left": None,
            "message": "waiting for the loop to end a step",
            "result": None,
        }
        self._set_state(self.state["message"])

    def start(self) -> None:
        """Return at once, whoever holds the GIL (see `loaders.switching.preparation`)."""
        thread = threading.Thread(target=self._drive, name="kernel-monitor-diagnose", daemon=True)
        _thread.start_new_thread(thread.start, ())

    def cancel(self, why: str) -> None:
        """Have it end; the loader still goes back to its first engine."""
        self._loop.cancel(why)

    def _drive(self) -> None:
        from ..loaders import listen

        self._loop.own_thread()
        unlisten = listen(self._loop.on_event)
        state: Outcome = "done"
        message = ""
        try:
            try:
                self._stage.start()
                while not self._loop.begun:
                    self._poll()
                for place, engine in enumerate(self._engines):
                    if place == 1:
                        self._predict()
                    self._try(engine)
            except DiagnosisAborted as end:
                state, message = end.state, str(end)
            self._go_back()
            self._end(state, message)
        except Exception as error:  # on a thread of our own: callers wait for `ended`
            log.exception("the diagnosis of %s failed", self._loop.name)
            message = f"The diagnosis failed: {type(error).__name__}: {error}"
            self.state = {**self.state, "state": "failed", "seconds_left": 0, "message": message}
        finally:
            unlisten()
            self.ended.set()

    def _try(self, engine: str) -> None:
        """Have an engine take over, let it settle, measure it."""
        problem = self._switch(engine) if self._loop.live.backend != engine else None
        if problem is None:
            self._settle(engine)
            self._trials.append(self._measure(engine))
        else:
            self._trials.append(Trial(engine, problem=problem))
        self._set_state("", done=self.state["done"] + 1)

    def _predict(self) -> None:
        """Before any other engine has run."""
        try:
            self._predicted = self._stage.gains(self._loop.id)
        except Exception as error:  # the measurement does not depend on it
            log.exception("no gain could be predicted")
            self._cannot.append(f"No gain was predicted: {type(error).__name__}: {error_text(error)}")

    def _switch(self, engine: str) -> str | None:
        """Ask for an engine and wait for its first batch; returns why there was none."""
        loop, asked = self._loop, time.monotonic()
        self._until = asked + CHANGE_S + self._seconds
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

    def _settle(self, engine: str) -> None:
        """Wait until the batches are used up that it had in advance: they say nothing of its speed."""
        knobs, steps = self._loop.live.knobs, self._loop.live.meter.totals().steps
        in_advance = max(IN_FLIGHT, knobs.prefetch * (max(1, knobs.workers) if engine == "torchvision" else 1))
        # The first engine has been delivering; a loop that has only just begun has batches in advance, too.
        wanted = in_advance + (steps if self._trials else 0)
        now = time.monotonic()
        least, most = now + SETTLE_S[0] * bool(self._trials), now + SETTLE_S[1]
        self._until = now + self._seconds
        self._set_state(f"{engine} settles", backend=engine)
        while (now := time.monotonic()) < least or (self._loop.live.meter.totals().steps < wanted and now < most):
            self._poll()

    def _measure(self, engine: str) -> Trial:
        loop, begun = self._loop, time.monotonic()
        seen = loop.live.meter.totals().steps
        steps: list[Step] = []
        seconds = left_out = 0.0
        while (seconds < self._seconds or (len(steps) < ENOUGH_STEPS and seconds < LONGEST_S)) and left_out < LONGEST_S:
            self._until = time.monotonic() + self._seconds - seconds
            self._set_state(f"measuring {engine}")
            self._poll()
            if engine in loop.failures:
                return Trial(engine, problem=loop.failures[engine])
            new, seen = loop.live.meter.steps_since(seen)
            steps += [step for step in new if step.end - step.step >= begun]  # a GPU's steps may come late
            rows = step_rows(steps)
            seconds, left_out = float(covered(rows).sum()), float(rows["step"][flagged(rows)].sum())
        times, store = self._stage.session_time, self._stage.store
        start, end = times(steps[0].end - steps[0].step) or 0.0, times(steps[-1].end) or 0.0
        return trial(engine, steps, store.rows(store.seq_before(start - 1.0), CHARTS), loop.id, start, end)

    def _go_back(self) -> None:
        """To the engine that was in use; unless a person has asked for another one meanwhile."""
        loop = self._loop
        try:
            if loop.clicked is None and (loop.live.switch_state.wanted or loop.live.backend) != self._first:
                loop.end = None
                asked = self._until = time.monotonic()
                self._set_state(f"going back to {self._first}", backend=self._first)
                loop.ask(self._first)
                # A loop that has ended switches in its next iteration.
                while (
                    loop.live.backend != self._first and max(loop.idle, time.monotonic() - asked - SWITCH_S) < START_S
                ):
                    self._poll()
            loop.yield_to_click()
        except DiagnosisAborted as end:
            log.debug("nothing more to go back to: %s", end)
        self._back_to = loop.clicked or self._first

    def _end(self, state: Outcome, message: str) -> None:
        result = None
        if self._trials:
            tried = {trial.backend for trial in self._trials}
            result = diagnosis(
                self._loop.id,
                self._loop.name,
                self._trials,
                first=self._first,
                back_to=self._back_to,
                predicted=self._predicted,
                message=message or f"{self._back_to} goes on.",
                cannot=self._cannot
                + [f"{engine} was not measured: {message}" for engine in self._engines if engine not in tried],
            )
            message = message or result["sentence"]
            at = self._stage.session_time(time.monotonic())
            if at is not None:
                self._stage.add_event("diagnosis", at, loader=self._loop.id, state=state, result=result)
        self.state = {**self.state, "state": state, "seconds_left": 0, "message": message, "result": result}

    def _poll(self) -> None:
        self._loop.poll()
        self._set_state(self.state["message"])

    def _set_state(self, message: str, **changes: Any) -> None:
        state: DiagnosisState = {**self.state, "message": message, **changes}  # type: ignore[typeddict-item]
        after = max(0, state["total"] - state["done"] - 1)
        left = max(0.0, self._until - time.monotonic()) + after * (self._seconds + CHANGE_S)
        state["seconds_left"] = math.ceil(left + CHANGE_S * (state["total"] > 1))
        if state != self.state:
            self.state = state


def _engines(backends: Sequence[EngineState], first: str, *, confirmed: bool) -> tuple[list[str], list[str]]:
    """The engines to try, the one in use first and the replay last; and why others are left out."""
    able, cannot = [], []
    for engine in backends:
        if engine["name"] == first:
            continue
        if not engine["available"]:
            cannot.append(f"{engine['name']} cannot run here: {engine['reason']}")
        elif engine["confirm"] is None or (confirmed and engine["name"] == REPLAYS):
            able.append(str(engine["name"]))
    return [first, *sorted(able, key=lambda name: name == REPLAYS)], cannot
