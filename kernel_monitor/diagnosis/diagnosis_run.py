"""One *Diagnose*: each engine delivers to the running loop for some seconds, then the first one goes on."""

from __future__ import annotations

import _thread
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..analysis.frames import flagged
from ..analysis.segments import IN_FLIGHT, REPLAYS
from ..errors import MonitorError
from ..privacy import error_text
from ..steps.measured_step import NO_GRADIENTS
from .trials import Trial, covered, diagnosis, step_rows, trial

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import DiagnosisState, GainState
    from ..protocol.states import EngineState
    from ..steps.measured_step import Step
    from ..steps.watched_loader import Source
    from ..store import Store


# ---- Watches the loop under diagnosis: whether it still steps, and whether anybody changes its loader meanwhile.

START_S = 5.0  # a loop that ends no step for this long, when the diagnosis begins, is not running
PAUSE_S = 30.0
"""A loop that ends no step for this long, later on, has ended; unless another loader of this process steps."""
_OTHERS_S = 300.0  # then it is an evaluation, which may take this long
POLL_S = 0.05
_NO_LOOP = (
    "No training loop is running: start it, then press Diagnose. (From Python: call monitor.diagnose(wait=False) "
    "in the loop, or monitor.diagnose() while the loop runs in a thread.)"
)


Outcome = Literal["done", "failed", "cancelled"]


class _DiagnosisAborted(Exception):
    """The diagnosis was aborted: carries its state (`failed`, `cancelled`) and the reason."""

    def __init__(self, state: Outcome, message: str) -> None:
        super().__init__(message)
        self.state = state


class DiagnosisContext(NamedTuple):
    """The parts of the monitor that a diagnosis uses."""

    store: Store  # has the figures of the machine
    loaders: Callable[[], list[AnyLoader]]  # the live ones of this process
    sources: Callable[[], list[AnyLoader | Source]]  # these, and what else is watched
    running: Callable[[], bool]
    session_time: Callable[[float], float | None]  # of a time of `time.monotonic`
    add_event: Callable[..., Any]
    start: Callable[[], None]  # starts the sampler; one that runs goes on
    # of a loader's id, what can be predicted of its changes now, as `analysis.results.Gain` in JSON
    gains: Callable[[str], Sequence[GainState]]


class LoopGuard:
    """A loop as seen through its loader, which is held weakly: a cell that is run again frees it."""

    def __init__(self, loader: AnyLoader, context: DiagnosisContext) -> None:
        self.id, self.name = loader.id, loader.name
        self.begun = False  # whether it has ended a step since this was made
        self.clicked: str | None = None
        self._asked: str | None = None  # by us; the loop of an attached loader passes it on, on its own thread
        self.took: set[str] = set()
        self.failures: dict[str, str] = {}
        self.end: _DiagnosisAborted | None = None
        self._loader = weakref.ref(loader)
        self._context = context
        self._thread = 0
        self._wake = threading.Event()
        totals = loader.meter.totals()
        self._start_s = max(START_S, 4 * totals.step_s / totals.steps if totals.steps else 0.0)
        self._steps, self._others = totals.steps, -1
        self._stepped = self._others_stepped = time.monotonic()

    @property
    def live(self) -> AnyLoader:
        """The loader; not to be kept. Raises `_DiagnosisAborted` where it is gone."""
        loader = self._loader()
        if loader is None:
            raise _DiagnosisAborted("failed", f"{self.name} is gone: its loop has ended, or its cell was run again.")
        return loader

    @property
    def idle(self) -> float:
        """Seconds since a step ended."""
        return time.monotonic() - self._stepped

    def ask(self, engine: str) -> None:
        """Ask for an engine; a person's request of the same moment is made again."""
        self.took.discard(engine)
        self.failures.pop(engine, None)
        self._asked = engine
        self.live.switch(engine)
        self.yield_to_click()

    def yield_to_click(self) -> None:
        """Ask again for the engine that a person has asked for."""
        clicked = self.clicked
        if clicked is not None and clicked not in self.failures:
            self.live.switch(clicked)

    def cancel(self, why: str) -> None:
        self.end = self.end or _DiagnosisAborted("cancelled", why)
        self._wake.set()

    def poll(self) -> None:
        """Wait a moment; raises `_DiagnosisAborted` where the loop ended, its loader was changed, or by `cancel`."""
        self._wake.wait(POLL_S)
        self._wake.clear()
        if self.end is not None:
            raise self.end
        if not self._context.running():
            raise _DiagnosisAborted("cancelled", "The monitor was stopped.")
        live, now = self.live, time.monotonic()
        totals = live.meter.totals()
        if totals.steps != self._steps:
            self._steps, self._stepped, self.begun = totals.steps, now, True
        others = sum(source.meter.totals().steps for source in self._context.sources() if source is not live)
        if others != self._others:
            self._others, self._others_stepped = others, now
        if not self.begun and self.idle > self._start_s:
            raise _DiagnosisAborted("failed", _NO_LOOP)
        evaluates = now - self._others_stepped < PAUSE_S
        pause = _OTHERS_S if evaluates else max(PAUSE_S, 4 * totals.step_s / max(1, totals.steps))
        if self.begun and self.idle > pause:
            raise _DiagnosisAborted(
                "failed", f"No step has ended for {self.idle:.0f} s: the loop has ended, or it pauses."
            )

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Note an event of a loader; called on the thread on which it happened."""
        if event["loader"] != self.id:
            return
        kind = event["kind"]
        if kind == "switch-asked" and threading.get_ident() != self._thread and event["target"] != self._asked:
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

    def __init__(self, loader: AnyLoader, context: DiagnosisContext, *, seconds: float, confirmed: bool) -> None:
        self.ended = threading.Event()
        self._loop = LoopGuard(loader, context)
        self._context = context
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
                self._context.start()
                while not self._loop.begun:
                    self._poll()
                for place, engine in enumerate(self._engines):
                    if place == 1:
                        self._predict()
                    self._try(engine)
            except _DiagnosisAborted as end:
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
            self._predicted = self._context.gains(self._loop.id)
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
        times, store = self._context.session_time, self._context.store
        start, end = times(steps[0].end - steps[0].step) or 0.0, times(steps[-1].end) or 0.0
        return trial(engine, steps, store.rows(store.seq_before(start - 1.0), CHARTS), loop.id, start, end)

    def _go_back(self) -> None:
        """To the engine that was in use; unless a person has asked for another one meanwhile."""
        loop = self._loop
        try:
            if loop.clicked is None and (loop.live.state()["wanted"] or loop.live.backend) != self._first:
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
        except _DiagnosisAborted as end:
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
            at = self._context.session_time(time.monotonic())
            if at is not None:
                self._context.add_event("diagnosis", at, loader=self._loop.id, state=state, result=result)
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


# ---- The command *Diagnose*: starts one diagnosis at a time, and has the state and the result of the newest.

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

    def __init__(self, choose: Callable[[str | None], AnyLoader], context: DiagnosisContext) -> None:
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
        """The progress of the newest diagnosis: `state` (`running`, `done`, `failed`, `cancelled`), `loader`, `name`,
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
