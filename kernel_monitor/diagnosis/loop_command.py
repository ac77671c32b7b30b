"""The commands *Diagnose* and *Tune*: one run at a time, and the state and the result of the newest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..steps.measured_step import NO_GRADIENTS
from ..text import quoted
from .diagnosis_run import DiagnosisRun
from .loop_guard import LoopContext
from .tune_run import TuneRun

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import DiagnosisState
    from .loop_run import LoopRun

SECONDS = (1.0, 60.0)  # how long *Diagnose* may measure an engine
TUNE_S = (15.0, 600.0)  # how long *Tune* may take
TOGETHER_S = 2.0  # among loaders whose newest steps lie within this time of each other the caller has to choose
EVALUATION_S = 600.0  # so long after the last step of a training its evaluation is taken for a part of it


class Diagnosis(dict[str, Any]):
    """The result of a diagnosis or a tune, as docs/messages.md has it (*Diagnosis*); as text a table and a sentence."""

    def __str__(self) -> str:
        lines = [self["sentence"], *([self["line"]] if self.get("line") else [])]
        width = max([12, *(len(run["label"]) for run in self["runs"])])
        for run in self["runs"]:
            label = run["label"] or run["backend"]
            if run["problem"] is not None:
                lines.append(f"{label:>{width}}  {run['problem']}")
                continue
            cpu = "" if run["cpu_p95"] is None else f"  CPU p95 {run['cpu_p95']:.0f} %"
            gpu = "" if run["gpu_p50"] is None else f"  GPU p50 {run['gpu_p50']:.0f} %"
            share = "" if run["of_ceiling"] is None else f"  {100 * run['of_ceiling']:.0f} % of the ceiling"
            lines.append(
                f"{label:>{width}}  {run['rate']:8,.0f} images/s"
                f" ({run['rate_low']:,.0f} to {run['rate_high']:,.0f})"
                f"  wait {run['wait']:,.1f} of {run['step']:,.1f} ms  {run['steps']:,} steps in {run['seconds']:.0f} s"
                f"{cpu}{gpu}{share}"
            )
        return "\n".join([*lines, *self["cannot"]])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


class LoopCommand:
    """Starts a diagnosis or a tune, one at a time, and holds the newest.

    `choose` finds the live loader of an id or name; for None the only one.
    """

    def __init__(self, choose: Callable[[str | None], AnyLoader], context: LoopContext) -> None:
        self._choose = choose
        self.context = context
        self._run: LoopRun | None = None
        self._tuned: TuneRun | None = None

    def diagnose(
        self, loader: str | None = None, *, seconds: float = 8.0, confirmed: bool = False, wait: bool = True
    ) -> Diagnosis | None:
        """Measure every engine that can run here in the running loop, and come back to the one in use.

        See `Monitor.diagnose`.
        """
        if type(seconds) not in (int, float) or not SECONDS[0] <= seconds <= SECONDS[1]:
            raise MonitorError(
                f"An engine is measured for {SECONDS[0]:g} to {SECONDS[1]:g} seconds, not for {quoted(seconds)}."
            )
        chosen = self._idle_loader(loader)
        return self._start(DiagnosisRun(chosen, self.context, seconds=float(seconds), confirmed=confirmed), wait=wait)

    def tune(self, loader: str | None = None, *, seconds: float = 60.0, wait: bool = True) -> Diagnosis | None:
        """Find the fastest setting in the running loop, and go on with it. See `Monitor.tune`."""
        if type(seconds) not in (int, float) or not TUNE_S[0] <= seconds <= TUNE_S[1]:
            raise MonitorError(f"Tune takes {TUNE_S[0]:g} to {TUNE_S[1]:g} seconds, not {quoted(seconds)}.")
        self._tuned = run = TuneRun(self._idle_loader(loader), self.context, seconds=float(seconds))
        return self._start(run, wait=wait)

    def undo_tune(self) -> None:
        """Bring back the setting from before the newest tune.

        Raises:
            MonitorError: there is none, or it changed nothing.
        """
        if self._tuned is None:
            raise MonitorError("There is nothing to undo: no loader was tuned.")
        self._tuned.undo()

    def _idle_loader(self, loader: str | None) -> AnyLoader:
        chosen = self._choose(loader if loader is not None else self._in_use())
        under_way = self._run
        if under_way is not None and not under_way.ended.is_set():
            doing = "diagnosed" if under_way.kind == "diagnose" else "tuned"
            raise MonitorError(f"{under_way.state['name']} is being {doing}: wait for it or cancel it first.")
        return chosen

    def _start(self, run: LoopRun, *, wait: bool) -> Diagnosis | None:
        self._run = run
        run.start()
        if not wait:
            return None
        try:
            run.ended.wait()
        except KeyboardInterrupt:
            run.cancel("It was interrupted.")
            raise
        if run.state["state"] != "done":
            raise MonitorError(run.state["message"])
        return Diagnosis(run.state["result"] or {})

    @property
    def state(self) -> DiagnosisState | None:
        """The progress of the newest diagnosis or tune; None before the first one.

        It has `kind` (`diagnose`, `tune`), `state` (`running`, `done`, `failed`, `cancelled`), `loader`, `name`,
        `backend` (under measurement), `done` and `total` (engines), `seconds_left`, `message` and `result` (what was
        measured, also by one that was aborted).
        """
        return None if self._run is None else self._run.state

    def cancel(self) -> bool:
        """End what is under way; the loader goes back to the setting it had. False if there is none."""
        run = self._run
        if run is None or run.ended.is_set():
            return False
        run.cancel("It was cancelled.")
        return True

    def forget_in_child(self) -> None:
        """Forget the run: in a forked child it has no thread."""
        self._run = self._tuned = None

    def _in_use(self) -> str | None:
        """Id of the only loader that steps now, or that did before the evaluation under way; None without one."""
        last = {}
        for loader in self.context.loaders():
            steps = loader.meter.steps_since(max(0, loader.meter.totals().steps - 1))[0]
            if steps:
                last[loader.id] = steps[-1]
        newest = max((step.end for step in last.values()), default=0.0)
        training = [step.end for step in last.values() if not step.flags & NO_GRADIENTS]
        if newest - max(training, default=-math.inf) < EVALUATION_S:
            newest = max(training)
            last = {name: step for name, step in last.items() if not step.flags & NO_GRADIENTS}
        stepping = [name for name, step in last.items() if newest - step.end < TOGETHER_S]
        return stepping[0] if len(stepping) == 1 else None
