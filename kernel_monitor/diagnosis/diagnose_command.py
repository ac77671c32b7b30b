"""The command *Diagnose*: starts one diagnosis at a time, and has the state and the result of the newest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..steps.measured_step import NO_GRADIENTS
from .diagnosis_run import DiagnosisRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..loaders import SwitchableLoader
    from ..protocol.analysis_states import DiagnosisState
    from .diagnosis_run import DiagnosisContext

SECONDS = (1.0, 60.0)  # how long an engine may be measured
TOGETHER_S = 2.0  # among loaders whose newest steps lie within this time of each other the caller has to choose
EVALUATION_S = 600.0  # so long after the last step of a training its evaluation is taken for a part of it


class Diagnosis(dict[str, Any]):
    """The result of a diagnosis, as docs/messages.md has it (*Diagnosis*); as text it is a table and a sentence."""

    def __str__(self) -> str:
        lines = [self["sentence"]]
        for run in self["runs"]:
            if run["problem"] is not None:
                lines.append(f"{run['backend']:>12}  {run['problem']}")
                continue
            cpu = "" if run["cpu_p95"] is None else f"  CPU p95 {run['cpu_p95']:.0f} %"
            gpu = "" if run["gpu_p50"] is None else f"  GPU p50 {run['gpu_p50']:.0f} %"
            share = "" if run["of_ceiling"] is None else f"  {100 * run['of_ceiling']:.0f} % of the ceiling"
            lines.append(
                f"{run['backend']:>12}  {run['rate']:8,.0f} images/s"
                f" ({run['rate_low']:,.0f} to {run['rate_high']:,.0f})"
                f"  wait {run['wait']:,.1f} of {run['step']:,.1f} ms  {run['steps']:,} steps in {run['seconds']:.0f} s"
                f"{cpu}{gpu}{share}"
            )
        return "\n".join([*lines, *self["cannot"]])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


class DiagnoseCommand:
    """Starts a diagnosis, one at a time, and holds the newest.

    `choose` finds the live loader of an id or name; for None the only one.
    """

    def __init__(self, choose: Callable[[str | None], SwitchableLoader], context: DiagnosisContext) -> None:
        self._choose = choose
        self.context = context
        self._run: DiagnosisRun | None = None

    def start(
        self, loader: str | None = None, *, seconds: float = 8.0, confirmed: bool = False, wait: bool = True
    ) -> Diagnosis | None:
        """Measure every engine that can run here in the running loop, and come back to the one in use.

        See `Monitor.diagnose`.
        """
        if type(seconds) not in (int, float) or not SECONDS[0] <= seconds <= SECONDS[1]:
            raise MonitorError(
                f"An engine is measured for {SECONDS[0]:g} to {SECONDS[1]:g} seconds, not for {seconds!r}."
            )
        chosen = self._choose(loader if loader is not None else self._in_use())
        under_way = self._run
        if under_way is not None and not under_way.ended.is_set():
            raise MonitorError(f"{under_way.state['name']} is being diagnosed: wait for it or cancel it first.")
        run = self._run = DiagnosisRun(chosen, self.context, seconds=float(seconds), confirmed=confirmed)
        del chosen
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
        """How far the newest diagnosis is: `state` (`running`, `done`, `failed`, `cancelled`), `loader`, `name`,
        `backend` (under measurement), `done` and `total` (engines), `seconds_left`, `message`, `result` (what was
        measured, also by one that was aborted); None before the first one."""
        return None if self._run is None else self._run.state

    def cancel(self) -> bool:
        """End the diagnosis under way; the loader goes back to the engine it had. False if there is none."""
        run = self._run
        if run is None or run.ended.is_set():
            return False
        run.cancel("It was cancelled.")
        return True

    def forget_in_child(self) -> None:
        """Forget the run: in a forked child it has no thread."""
        self._run = None

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
