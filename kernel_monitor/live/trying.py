"""One *Diagnose*: each engine gets a stretch of the running loop, then the first one has it back."""

from __future__ import annotations

import _thread
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnose.switches import IN_FLIGHT, REPLAYS
from ..diagnose.trials import Trial, covered, diagnosis, trial
from ..errors import MonitorError
from ..paths import told
from .attending import START_S, Ended, Loop

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..steps.records import Step
    from .attending import Stage

ENOUGH_STEPS = 20
"""Steps for which an engine is measured longer than it was asked for."""
LONGEST_S = 25.0
"""But no longer than this."""
SWITCH_S = 40.0
"""An engine that has not delivered for this long after it was asked for is left out."""
SETTLE_S = (0.5, 6.0)
"""After an engine's first batch: the least and the most that is not measured, while what it had in advance goes."""
CHANGE_S = 5.0
"""What a change of engines takes, as far as `seconds_left` knows."""
CHARTS = ("cpu", "gpu", "images", "wait")
"""Whose series the figures of the machine come from."""
State = dict[str, Any]
log = logging.getLogger(__name__)


class Run:
    """One diagnosis, on a thread of its own.

    Args:
        loader: whose engines are tried.
        stage: gets the event, and has the figures of the machine.
        seconds: for which each engine is measured.
        confirmed: whether batches may be replayed.
    """

    def __init__(self, loader: SwitchableLoader, stage: Stage, *, seconds: float, confirmed: bool) -> None:
        self.ended = threading.Event()
        self._loop = Loop(loader, stage)
        self._stage = stage
        self._seconds = seconds
        told = loader.state()
        self._first = self._back_to = str(told["wanted"] or told["backend"])
        self._engines, self._cannot = _engines(told["backends"], self._first, confirmed=confirmed)
        self._trials: list[Trial] = []
        self._predicted: list[dict[str, Any]] = []
        self._until = time.monotonic() + seconds  # when the engine in its turn will be done, as far as is known
        self.state: State = {
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
        self._say(self.state["message"])

    def start(self) -> None:
        """Return at once, whoever holds the GIL (see `loaders.switch.prepare_in_background`)."""
        thread = threading.Thread(target=self._drive, name="kernel-monitor-diagnose", daemon=True)
        _thread.start_new_thread(thread.start, ())

    def cancel(self, why: str) -> None:
        """Have it end; it still sees to the way back."""
        self._loop.cancel(why)

    def _drive(self) -> None:
        from ..loaders import listen

        self._loop.belongs_here()
        unlisten = listen(self._loop.heard)
        state, message = "done", ""
        try:
            try:
                self._stage.start()
                while not self._loop.begun:
                    self._poll()
                for place, engine in enumerate(self._engines):
                    if place == 1:
                        self._predict()
                    self._try(engine)
            except Ended as end:
                state, message = end.state, str(end)
            self._go_back()
            self._end(state, message)
        except Exception as error:  # whatever it is, nobody must wait for ever
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
        self._say("", done=self.state["done"] + 1)

    def _predict(self) -> None:
        """Before any other engine has run."""
        try:
            self._predicted = self._stage._gains(self._loop.id)
        except Exception as error:  # the measurement does not depend on it
            log.exception("no gain could be predicted")
            self._cannot.append(f"No gain was predicted: {type(error).__name__}: {told(error)}")

    def _switch(self, engine: str) -> str | None:
        """Ask for an engine and wait for its first batch; returns why there was none."""
        loop, asked = self._loop, time.monotonic()
        self._until = asked + CHANGE_S + self._seconds
        self._say(f"switching to {engine}", backend=engine)
        try:
            loop.ask(engine)
        except MonitorError as error:
            return told(error)
        while engine not in loop.took and loop.live.backend != engine:
            self._poll()
            if engine in loop.failures:
                return loop.failures[engine]
            if time.monotonic() - asked > SWITCH_S and loop.idle < START_S:
                return f"it did not take over within {SWITCH_S:.0f} s"
        return None

    def _settle(self, engine: str) -> None:
        """Let those batches go that it had in advance: a full queue says nothing of what fills it."""
        knobs, steps = self._loop.live.knobs, self._loop.live.meter.totals().steps
        in_advance = max(IN_FLIGHT, knobs.prefetch * (max(1, knobs.workers) if engine == "torchvision" else 1))
        # The first one has been delivering; of a loop that has only just begun the same holds as of a switch.
        wanted = in_advance + (steps if self._trials else 0)
        now = time.monotonic()
        least, most = now + SETTLE_S[0] * bool(self._trials), now + SETTLE_S[1]
        self._until = now + self._seconds
        self._say(f"{engine} settles", backend=engine)
        while (now := time.monotonic()) < least or (self._loop.live.meter.totals().steps < wanted and now < most):
            self._poll()

    def _measure(self, engine: str) -> Trial:
        loop, begun = self._loop, time.monotonic()
        seen = loop.live.meter.totals().steps
        steps: list[Step] = []
        seconds = 0.0
        while seconds < self._seconds or (len(steps) < ENOUGH_STEPS and seconds < LONGEST_S):
            self._until = time.monotonic() + self._seconds - seconds
            self._say(f"measuring {engine}")
            self._poll()
            if engine in loop.failures:
                return Trial(engine, problem=loop.failures[engine])
            new, seen = loop.live.meter.steps_since(seen)
            steps += [one for one in new if one.end - one.step >= begun]  # a GPU's steps may be told late
            seconds = float(covered(steps).sum())
        times, store = self._stage._sampling.session_time, self._stage.store
        start, end = times(steps[0].end - steps[0].step) or 0.0, times(steps[-1].end) or 0.0
        return trial(engine, steps, store.rows(store.seq_before(start - 1.0), CHARTS), loop.id, start, end)

    def _go_back(self) -> None:
        """To the engine that was in use; unless a person has asked for one, which stands."""
        loop = self._loop
        try:
            if loop.clicked is None and (loop.live.board.wanted or loop.live.backend) != self._first:
                loop.end = None
                asked = self._until = time.monotonic()
                self._say(f"going back to {self._first}", backend=self._first)
                loop.ask(self._first)
                # A loop that has ended takes it up in its next iteration.
                while (
                    loop.live.backend != self._first and max(loop.idle, time.monotonic() - asked - SWITCH_S) < START_S
                ):
                    self._poll()
            loop.yield_to_click()
        except Ended as end:
            log.debug("nothing more to go back to: %s", end)
        self._back_to = loop.clicked or self._first

    def _end(self, state: str, message: str) -> None:
        result = None
        if self._trials:
            tried = {one.backend for one in self._trials}
            result = diagnosis(
                self._loop.id,
                self._loop.name,
                self._trials,
                first=self._first,
                back_to=self._back_to,
                predicted=self._predicted,
                message=message or f"{self._back_to} goes on.",
                cannot=self._cannot
                + [f"{one} was not measured: {message}" for one in self._engines if one not in tried],
            )
            message = message or result["sentence"]
            at = self._stage._sampling.session_time(time.monotonic())
            if at is not None:
                self._stage._sampling.add_event("diagnosis", at, loader=self._loop.id, state=state, result=result)
        self.state = {**self.state, "state": state, "seconds_left": 0, "message": message, "result": result}

    def _poll(self) -> None:
        self._loop.poll()
        self._say(self.state["message"])

    def _say(self, message: str, **changes: Any) -> None:
        """Replace the state if it says something else."""
        state = {**self.state, "message": message, **changes}
        after = max(0, state["total"] - state["done"] - 1)
        left = max(0.0, self._until - time.monotonic()) + after * (self._seconds + CHANGE_S)
        state["seconds_left"] = math.ceil(left + CHANGE_S * (state["total"] > 1))
        if state != self.state:
            self.state = state


def _engines(backends: Sequence[Mapping[str, Any]], first: str, *, confirmed: bool) -> tuple[list[str], list[str]]:
    """The engines to try, the one in use first and the replay last; and why others are left out."""
    able, cannot = [], []
    for one in backends:
        if one["name"] == first:
            continue
        if not one["available"]:
            cannot.append(f"{one['name']} cannot run here: {one['reason']}")
        elif one["confirm"] is None or confirmed:
            able.append(str(one["name"]))
    return [first, *sorted(able, key=lambda name: name == REPLAYS)], cannot
