"""*Tune*: finds, in the running loop, the engine and the knobs that bring the most images/s, and leaves them in use.

A measured search within a time: settings are tried in short windows of steps (`search.py` says which), the best of them
again in longer ones, those that stay behind are dropped. No table of constants says what a machine is good for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from ..analysis.results import faster
from ..errors import MonitorError
from ..os_process import usable_cores
from ..sample.host.process_limits import memory_available, shared_memory
from .loop_guard import POLL_S, LoopContext, RunAborted, program_ends
from .loop_run import LoopRun
from .search import CONTENDERS, Search
from .trials import TORCHVISION, Candidate, Trial, began_of, ended_of, epoch_seconds, over_epochs, runs_of

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.analysis_states import DiagnosisResult
    from ..steps.measured_step import Step

WINDOW_S = 2.0  # how long a setting is measured first; the one in use twice as long, those measured again as well
FEW_STEPS = 8  # for so many steps it is measured longer, up to `LONGEST` times as long
LONGEST = 2
SETTLE_S = (0.3, 3.0)  # the least and the most that is not measured after a change
EXPLORED = 0.75  # the share of the time in which settings are tried that were not tried before
LAST_S = 4.0  # of the time are kept for the change to the best setting
HOPELESS = 0.6  # a setting that has less than this share of the best rate after `TOLD_S` is not measured to the end
TOLD_S = 1.0
LEAST_MEMORY = 512 << 20  # bytes that stay available whatever is tried
MOST_SHARED = 0.8  # of /dev/shm, where workers put their batches: a worker that finds it full is killed
_ROOM_S = 0.5  # between two looks at the available memory
_WORKER = 250 << 20  # bytes that the first worker is assumed to take, before one was seen
log = logging.getLogger(__name__)


class _ShortOfMemory(Exception):
    """What is tried leaves too little memory."""


class TuneRun(LoopRun):
    """One tune; arguments as for `LoopCommand.tune`."""

    kind = "tune"

    def __init__(self, loader: AnyLoader, context: LoopContext, *, seconds: float) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds
        super().__init__(loader, context, total=0)
        self._cannot: list[str] = []
        engines = []
        for engine in self._backends:
            if engine["available"] and engine["confirm"] is None and engine["name"] != "ray":
                engines.append(str(engine["name"]))
            elif not engine["available"]:
                self._cannot.append(f"{engine['name']} cannot run here: {engine['reason']}")
        self._search = Search(self._first, engines, usable_cores(), self._prefetch, self._threads, self._refusal)
        self._steps: dict[Candidate, list[Step]] = {}
        self._kept = self._now = self._first
        self._checked = 0.0
        self._worker_bytes = 0
        self._batch_bytes = 0.0  # of shared memory, for each batch that workers have ready; the most that was seen
        self._trying = False
        self._undone = False

    # -- the search -----------------------------------------------------------------------------------------------

    def _measure_all(self) -> None:
        self._begun = time.monotonic()
        exploring = self._begun + EXPLORED * self._seconds
        longest = 0.0  # of the tries so far, s
        for candidate in self._search.candidates():
            if time.monotonic() > exploring:
                self._cannot.append("Time was up before every setting had been tried: tune again, with more seconds.")
                break
            longest = max(longest, self._try(candidate, (2 if candidate == self._first else 1) * WINDOW_S))
        longest += WINDOW_S  # by which those that are measured again take longer
        until = self._begun + self._seconds - LAST_S
        for most in CONTENDERS:
            contenders = self._search.contenders(most)
            if len(contenders) == 1:
                break
            # The one that delivers now is measured first: that takes no change.
            for candidate in sorted(contenders, key=lambda one: one != self._now):
                if time.monotonic() + longest < until:
                    longest = max(longest, self._try(candidate, 2 * WINDOW_S))

    def _try(self, candidate: Candidate, seconds: float) -> float:
        """Have a candidate take over, let it settle, measure it; more exactly if it was measured before.

        Returns the seconds that this took.
        """
        began = time.monotonic()
        self._trying = True
        try:
            problem = self._apply(candidate)
            if problem is None:
                self._settle(candidate.label, self._in_advance(candidate), *SETTLE_S)
                self._look(candidate, seconds)
            else:
                self._note(Trial(candidate.engine, problem=problem), candidate)
        except _ShortOfMemory as short:
            self._trying = False
            self._note(Trial(candidate.engine, problem=str(short)), candidate)
            problem = self._apply(self._first)
            if problem is not None:
                raise RunAborted("failed", problem) from short
        finally:
            self._trying = False
        self._set_state("", done=len(self._search.measured))
        return time.monotonic() - began

    def _look(self, candidate: Candidate, seconds: float) -> None:
        """Measure a candidate that delivers, for some seconds; the steps of earlier times count, too."""
        best = self._search.rate(self._search.top)
        before = self._steps.setdefault(candidate, [])
        batches = self._loop.live.state()["batches"] or 0

        def left(steps: Sequence[Step]) -> float:
            spent = sum(step.step for step in steps)
            samples = sum(step.images for step in steps)
            if spent >= LONGEST * seconds:
                return 0.0
            # Of short epochs a whole one is to be seen: all batches of many workers may come at once, after a while.
            part = len(steps) < batches and epoch_seconds(steps, batches) < LONGEST * seconds
            if len(steps) < FEW_STEPS or part:
                return max(POLL_S, seconds - spent)
            if not before and spent > TOLD_S and samples < HOPELESS * best * spent:
                return 0.0
            return max(0.0, seconds - spent)

        label = candidate.label if best == 0 else f"{candidate.label} (best so far: {self._so_far()})"
        trial, steps = self._measure(candidate, label, left)
        if steps:
            before += steps
            trial = self._trial(candidate, before, since=len(before) - len(steps))
        self._note(over_epochs(trial, before, batches), candidate)
        shared = shared_memory()
        if shared is not None and candidate.engine == TORCHVISION and candidate.workers > 0:
            self._batch_bytes = max(self._batch_bytes, shared.used / self._shared_batches(candidate))

    def _note(self, trial: Trial, candidate: Candidate) -> None:
        self._search.measured[candidate] = replace(trial, label=candidate.label)
        self._trials = list(self._search.measured.values())

    def _so_far(self) -> str:
        top = self._search.top
        base = self._search.rate(self._first)
        times = f", {self._search.rate(top) / base:.1f} × the first" if top != self._first and base > 0 else ""
        return f"{top.label}{times}"

    def _apply(self, candidate: Candidate) -> str | None:
        """Bring a candidate into use; returns why that was not possible."""
        loop = self._loop
        if candidate == self._now and loop.live.backend == candidate.engine:
            return None
        self._checked = 0.0
        # Knobs first: an engine that does not deliver is made anew at once, and begins with them.
        problem = self._turn(candidate)
        if problem is None and (loop.live.state()["wanted"] or loop.live.backend) != candidate.engine:
            problem = self._switch(candidate.engine)
        if problem is None and candidate.engine == TORCHVISION:
            self._serve_torchvision(candidate)
        self._now = candidate if problem is None else Candidate("", 0, None, None)
        return problem

    def _serve_torchvision(self, candidate: Candidate) -> None:
        """Have knobs that were turned before the switch hold for an attached loader's own iterations, too."""
        if candidate != self._first or self._knobs_were_set:
            self._loop.live.set(workers=candidate.workers)

    def _threads(self) -> int:
        return self._loop.live.knobs.threads or usable_cores()

    # -- the machine ----------------------------------------------------------------------------------------------

    def _refusal(self, candidate: Candidate) -> str | None:
        """Return why a candidate would take too much memory; None where it would not."""
        if candidate.engine != TORCHVISION:
            return None
        live = self._loop.live
        pids = live.worker_pids
        for pid in pids[:1]:
            try:
                self._worker_bytes = max(self._worker_bytes, psutil.Process(pid).memory_full_info().uss)
            except psutil.Error as error:
                log.debug("the memory of a worker is not known: %s", error)
        further = max(0, candidate.workers - len(pids)) * (self._worker_bytes or _WORKER)
        available = memory_available()
        if available - further < LEAST_MEMORY:
            return (
                f"{candidate.label} was not tried: {further / 2**30:,.1f} GiB more would be needed, and "
                f"{available / 2**30:,.1f} GiB are available."
            )
        shared, batches = shared_memory(), self._shared_batches(candidate)
        if shared is None or batches * self._batch_bytes <= MOST_SHARED * shared.total:
            return None
        return (
            f"{candidate.label} was not tried: its {batches:,} batches in flight would take "
            f"{batches * self._batch_bytes / 2**20:,.0f} MiB of /dev/shm, which has {shared.total / 2**20:,.0f}. "
            "In a container, give it more: --shm-size=8g."
        )

    def _shared_batches(self, candidate: Candidate) -> int:
        """Return how many batches workers may have ready at a time."""
        return candidate.workers * (candidate.prefetch or self._prefetch)

    def _poll(self) -> None:
        super()._poll()
        if not self._trying:
            return
        now = time.monotonic()
        if now - self._checked > _ROOM_S:
            self._checked = now
            available = memory_available()
            if available < LEAST_MEMORY:
                raise _ShortOfMemory(f"it left only {available / 2**20:,.0f} MiB of memory")
        shared = shared_memory()
        if shared is not None and shared.free < (1 - MOST_SHARED) * shared.total:
            raise _ShortOfMemory(f"it left only {shared.free / 2**20:,.0f} MiB of shared memory (/dev/shm)")

    # -- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        loop = self._loop
        self._kept = self._search.best if self._outcome == "done" else self._first
        if loop.clicked is None and loop.turned is None and not program_ends():
            loop.end = None
            self._set_state(f"going on with {self._kept.label}")
            try:
                problem = self._apply(self._kept)
                if problem is not None:
                    self._cannot.append(f"{self._kept.label} could not take over again: {problem}")
                    self._kept = self._first
                    self._apply(self._first)
            except (RunAborted, _ShortOfMemory) as end:
                log.debug("the loop takes it over later, if it goes on: %s", end)
        elif loop.turned is None and not program_ends():
            self._bring_back_knobs()
        loop.yield_to_click()

    def _bring_back_knobs(self) -> None:
        """A person chose an engine: with the knobs from before."""
        try:
            self._loop.turn(self._knobs(self._first))
        except (MonitorError, RunAborted) as error:
            log.debug("the knobs stay as they were tried: %s", error)

    def undo(self) -> None:
        """Bring back the setting that was in use before.

        Raises:
            MonitorError: nothing was changed, it still runs, or the loader is gone.
        """
        if not self.ended.is_set():
            raise MonitorError("Tune still runs: cancel it, then the first setting comes back.")
        if self._undone or self._kept == self._first or self.state["state"] != "done":
            raise MonitorError("There is nothing to undo: the setting from before Tune is in use.")
        try:
            live = self._loop.live
            knobs, now = self._knobs(self._first), live.knobs._asdict()
            changes = {name: value for name, value in knobs.items() if now[name] != value}
            if changes:
                live.set(**changes)
            live.switch(self._first.engine)
            if self._first.engine == TORCHVISION and self._knobs_were_set:
                live.set(workers=self._first.workers)
        except RunAborted as gone:
            raise MonitorError(str(gone)) from gone
        self._undone = True
        result = self.state["result"]
        message = f"Undone: {self._first.label} comes back."
        if result is not None:
            result = {**result, "undo": None, "line": None, "message": message}
        self.state = {**self.state, "message": message, "result": result}

    def _result(self, message: str) -> DiagnosisResult:
        measured, kept = self._search.measured, self._kept
        changed = self._outcome == "done" and kept != self._first
        tried = [*self._search.refusals.values(), *self._cannot]
        failed = [f"{trial.label}: {trial.problem.rstrip('.')}." for trial in self._trials if trial.problem is not None]
        return {
            "kind": "tune",
            "loader": self._loop.id,
            "name": self._loop.name,
            "began": began_of(self._trials),
            "ended": ended_of(self._trials),
            "back_to": self._loop.clicked or kept.engine,
            "synthetic": False,
            "message": message or (f"{kept.label} goes on." if changed else f"{kept.label} goes on, as before."),
            "runs": runs_of(sorted(self._trials, key=lambda trial: -trial.rate if trial.rate > 0 else math.inf)),
            "predicted": [],
            "measured": [],
            "best": kept.engine if self._outcome == "done" else None,
            "sentence": self._sentence(measured.get(self._first), measured.get(kept)),
            "advised": [],
            "cannot": [*failed, *tried],
            "line": self._line() if changed else None,
            "undo": self._first.label if changed else None,
        }

    def _sentence(self, base: Trial | None, best: Trial | None) -> str:
        """Return the result, with figures, their spread and their counts."""
        count = sum(trial.problem is None for trial in self._trials)
        if base is None or best is None or base.problem is not None or best.problem is not None:
            return "No setting could be measured."
        if best is base:
            others = [trial for trial in self._trials if trial.problem is None and trial is not base]
            second = max(others, key=lambda trial: trial.rate, default=None)
            also = "" if second is None else f" The best of the others: {second.label}, {_rate(second)}."
            return f"None of {count:,} settings is surely faster than {base.label}: {_rate(base)}.{also}"
        words = faster(1 - base.rate / best.rate)
        return (
            f"{best.label} is the best of {count:,} settings, {words} than {base.label}: {_rate(best)}, "
            f"before {_rate(base)}."
        )

    def _line(self) -> str:
        """Return the setting that goes on as code to paste."""
        kept = self._kept
        if kept.engine == TORCHVISION:
            prefetch = kept.prefetch or self._prefetch
            more = f", prefetch_factor={prefetch}, persistent_workers=True" if kept.workers > 0 else ""
            return f"DataLoader(…, num_workers={kept.workers}{more})"
        knobs = [f"threads={kept.threads}"] if kept.threads is not None else []
        knobs += [f"prefetch={kept.prefetch}"] if kept.prefetch is not None else []
        turned = f"; loader.set({', '.join(knobs)})" if knobs else ""
        return f'loader = switchable(loader); loader.switch("{kept.engine}"){turned}'

    def _seconds_left(self) -> float:
        return max(0, math.ceil(self._begun + self._seconds - time.monotonic()))


def _rate(trial: Trial) -> str:
    spread = f"quartiles {trial.rate_low:,.0f} to {trial.rate_high:,.0f}"
    return f"{trial.rate:,.0f} images/s ({spread}; {trial.samples:,} in {trial.seconds:.0f} s)"
