"""*Diagnose* as a person calls it: try every engine in the running loop; and what a switch changed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError, SessionError
from ..steps.records import NO_GRADIENTS
from ..text import line
from .trying import Run, State

if TYPE_CHECKING:
    from ..diagnose import SwitchComparison
    from ..loaders import SwitchableLoader
    from ..store import Snapshot, Store
    from .sampling import Sampling

SECONDS = (1.0, 60.0)
"""How long an engine may be measured."""
TOGETHER_S = 2.0
"""Of loaders whose newest steps lie within this time of each other nobody can say which one is meant."""

EVALUATION_S = 600.0
"""So long after the last step of a training its evaluation is taken for a part of it."""


class Diagnosis(dict[str, Any]):
    """What was found, as docs/architecture.md has it (*Diagnosis*); as text it is a table and a sentence."""

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


class Diagnosing(ABC):
    """The part of the monitor that tries engines in the running loop."""

    store: Store
    _sampling: Sampling
    _diagnosing: Run | None = None

    @abstractmethod
    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders of this process, oldest first."""

    @abstractmethod
    def start(self) -> None:
        """Start sampling; what runs goes on."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Everything that was measured so far."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether samples are taken."""

    @abstractmethod
    def _choose(self, loader: str | None) -> SwitchableLoader:
        """The live loader of that id or name; the only one for None."""

    @abstractmethod
    def _gains(self, loader: str) -> list[dict[str, Any]]:
        """Gains (`model.Gain` as JSON) that can be reckoned for a loader now."""

    def diagnose(
        self, loader: str | None = None, *, seconds: float = 8.0, confirmed: bool = False, wait: bool = True
    ) -> Diagnosis | None:
        """Measure every engine that can run here in the running loop, and come back to the one in use.

        The loop must be running in another thread, or this must be called in the loop with `wait=False`. The loop
        itself only has its engine switched; its batches are the same ones in the same order.

        Args:
            loader: the loader's id or name; may be left out where one is in use.
            seconds: how long each engine is measured, 1 to 60; longer (up to 25 s) where too few steps end in it.
            confirmed: a person allows `synthetic` too, which replays batches in the places of the plan's: the ceiling.
            wait: until it is done; else `diagnosing` says how far it is.

        Returns:
            What was found; None with `wait=False`.

        Raises:
            MonitorError: there is no such loader, one is being diagnosed already, or it came to no end (no loop runs,
                the loop ended, somebody clicked meanwhile); `diagnosing` has what was measured until then.
        """
        if not _is_number(seconds) or not SECONDS[0] <= seconds <= SECONDS[1]:
            raise MonitorError(
                f"An engine is measured for {SECONDS[0]:g} to {SECONDS[1]:g} seconds, not for {seconds!r}."
            )
        chosen = self._choose(loader if loader is not None else self._in_use())
        under_way = self._diagnosing
        if under_way is not None and not under_way.ended.is_set():
            raise MonitorError(f"{under_way.state['name']} is being diagnosed: wait for it or cancel it first.")
        run = self._diagnosing = Run(chosen, self, seconds=float(seconds), confirmed=confirmed)
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
        return Diagnosis(run.state["result"])

    def comparison(self, loader: str | None = None) -> SwitchComparison:
        """What the last switch of a loader's engine changed: ``print(monitor.comparison())`` at the end of a training.

        Args:
            loader: the loader's id or name; may be left out: then it is the one that switched last.

        Returns:
            `sentence` (also its text), `switch`, `before` and `after` (what was measured on both sides)
            and `faster`. Where there is nothing to compare the sentence says why.

        Raises:
            MonitorError: no loader, or more than one, is called that.
        """
        from ..diagnose.comparison import SwitchComparison, last_comparison

        try:
            snapshot = self.snapshot()
        except SessionError:  # a training's last line is no place for an error
            return SwitchComparison("Nothing was measured: %monitor in a cell before the training starts the monitor.")
        return last_comparison(snapshot, None if loader is None else line(loader))

    @property
    def diagnosing(self) -> State | None:
        """How far the newest diagnosis is: `state` (`running`, `done`, `failed`, `cancelled`), `loader`, `name`,
        `backend` (under measurement), `done` and `total` (engines), `seconds_left`, `message`, `result` (what was
        measured, also of one that came to no end); None before the first one."""
        run = self._diagnosing
        return None if run is None else run.state

    def cancel_diagnosis(self) -> bool:
        """End the diagnosis under way; the loader goes back to the engine it had. False if there is none."""
        run = self._diagnosing
        if run is None or run.ended.is_set():
            return False
        run.cancel("It was cancelled.")
        return True

    def _in_use(self) -> str | None:
        """Id of the one loader that steps now, or did before the evaluation that does; None: none does, or several."""
        last = {}
        for one in self.loaders():
            steps = one.meter.steps_since(max(0, one.meter.totals().steps - 1))[0]
            if steps:
                last[one.id] = steps[-1]
        newest = max((step.end for step in last.values()), default=0.0)
        training = [step.end for step in last.values() if not step.flags & NO_GRADIENTS]
        if newest - max(training, default=-math.inf) < EVALUATION_S:
            newest = max(training)
            last = {name: step for name, step in last.items() if not step.flags & NO_GRADIENTS}
        stepping = [name for name, step in last.items() if newest - step.end < TOGETHER_S]
        return stepping[0] if len(stepping) == 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
