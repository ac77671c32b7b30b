"""*Diagnose*: each engine delivers to the running loop for some seconds, then the first one goes on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.frames import flagged
from ..analysis.segments import REPLAYS
from ..privacy import error_text
from ..text import log_failed
from .loop_guard import POLL_S, LoopContext
from .loop_run import CHANGE_S, LoopRun
from .trials import Candidate, Trial, covered, diagnosis, step_rows

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import DiagnosisResult, GainState
    from ..protocol.states import EngineState
    from ..steps.measured_step import Step

ENOUGH_STEPS = 20  # for so many steps an engine is measured longer than it was asked for
LONGEST_S = 25.0  # but no longer than this; nor is it waited for steps that count while those of warm-up take so long
SETTLE_S = (0.5, 6.0)
"""The least and the most that is not measured after an engine's first batch, while its batches in advance are used."""
log = logging.getLogger(__name__)


class DiagnosisRun(LoopRun):
    """One diagnosis; arguments as for `LoopCommand.diagnose`."""

    kind = "diagnose"

    def __init__(self, loader: AnyLoader, context: LoopContext, *, seconds: float, confirmed: bool) -> None:
        self._seconds = seconds
        super().__init__(loader, context, total=0)
        first = self._back_to = self._first.engine
        self._engines, self._cannot = _engines(self._backends, first, confirmed=confirmed)
        self._predicted: Sequence[GainState] = []
        self._until += seconds
        self.state = {**self.state, "total": len(self._engines)}
        self._set_state(self.state["message"])

    def _measure_all(self) -> None:
        for place, engine in enumerate(self._engines):
            if place == 1:
                self._predict()
            self._try(self._first._replace(engine=engine))

    def _try(self, candidate: Candidate) -> None:
        """Have an engine take over, let it settle, measure it."""
        engine = candidate.engine
        self._until = time.monotonic() + CHANGE_S + self._seconds
        problem = self._switch(engine) if self._loop.live.backend != engine else None
        if problem is None:
            # The first engine has been delivering; a loop that has only just begun has batches in advance, too.
            done = 0 if self._trials else self._loop.live.meter.totals().steps
            least, most = SETTLE_S if self._trials else (0.0, SETTLE_S[1])
            self._until = time.monotonic() + self._seconds
            self._settle(engine, self._in_advance(candidate) - done, least, most)
            self._trials.append(self._measure(candidate, engine, self._left)[0])
        else:
            self._trials.append(Trial(engine, problem=problem))
        self._set_state("", done=self.state["done"] + 1)

    def _left(self, steps: Sequence[Step]) -> float:
        """Return the seconds for which an engine with these steps is still to be measured."""
        rows = step_rows(steps)
        covers, left_out = float(covered(rows).sum()), float(rows["step"][flagged(rows)].sum())
        if left_out >= LONGEST_S or (covers >= self._seconds and (len(steps) >= ENOUGH_STEPS or covers >= LONGEST_S)):
            return 0.0
        return max(POLL_S, self._seconds - covers)

    def _predict(self) -> None:
        """Before any other engine has run."""
        try:
            self._predicted = self._context.gains(self._loop.id)
        except Exception as error:  # noqa: BLE001 - the measurement does not depend on it
            log_failed(log, "no gain could be predicted")
            self._cannot.append(f"No gain was predicted: {type(error).__name__}: {error_text(error)}")

    def _finish(self) -> None:
        self._go_back(self._first, f"going back to {self._first.engine}")
        self._back_to = self._loop.clicked or self._first.engine

    def _result(self, message: str) -> DiagnosisResult:
        tried = {trial.backend for trial in self._trials}
        return diagnosis(
            self._loop.id,
            self._loop.name,
            self._trials,
            first=self._first.engine,
            back_to=self._back_to,
            predicted=self._predicted,
            message=message or f"{self._back_to} goes on.",
            cannot=self._cannot
            + [f"{engine} was not measured: {message}" for engine in self._engines if engine not in tried],
        )

    def _seconds_left(self) -> float:
        total = self.state["total"]
        after = max(0, total - self.state["done"] - 1)
        left = max(0.0, self._until - time.monotonic()) + after * (self._seconds + CHANGE_S)
        return math.ceil(left + CHANGE_S * (total > 1))


def _engines(backends: Sequence[EngineState], first: str, *, confirmed: bool) -> tuple[list[str], list[str]]:
    """Return the engines to try, the one in use first and the replay last; and why others are left out."""
    able, cannot = [], []
    for engine in backends:
        if engine["name"] == first:
            continue
        if not engine["available"]:
            cannot.append(f"{engine['name']} cannot run here: {engine['reason']}")
        elif engine["confirm"] is None or (confirmed and engine["name"] == REPLAYS):
            able.append(str(engine["name"]))
    return [first, *sorted(able, key=lambda name: name == REPLAYS)], cannot
