"""One run of *Profile 10 steps*: torch's profiler from one step boundary to another, then the trace as tables."""

from __future__ import annotations

import _thread
import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MonitorError
from ..steps.boundary import at_boundary
from ..steps.main_thread import run_on_main_thread
from ..steps.measured_step import PROFILED
from ..stream.render_process import run_module
from .operators import new_trace
from .torch_profile import OperatorProfile

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..protocol.analysis_states import ProfileResult, ProfileState, TaskState
    from ..steps.boundary import BoundaryInfo
    from ..steps.sources import Source

STALL_S = 10.0
STALL_STEPS = 5.0  # a profiled loop that ends no step for so long, or for so many of its steps, is over
TO_STOP_S = 60.0  # how long the main thread may take until it gets to stopping the profiler
READING = "reading the trace"  # the message of a profile whose steps are over
NOT_WORKERS = "What runs in the loader's worker processes is not in it."

log = logging.getLogger(__name__)


class Stage(NamedTuple):
    """What a profile needs of the monitor."""

    sources: Callable[[], Sequence[SwitchableLoader | Source]]  # the loops of this process
    recording: Callable[[], str | None]  # the path of the session's recording
    session_time: Callable[[float], float | None]  # of a time of `time.monotonic`
    add_event: Callable[..., Any]
    start: Callable[[], None]  # starts the sampler; one that runs goes on


class ProfileRun:
    """One profile: `_boundary` runs on the loop's thread, everything after the last step on a thread of its own.

    `source` is id and name of the loader whose steps count (None: whichever steps next), `patience` the s to wait for
    the first of them.
    """

    def __init__(self, stage: Stage, source: tuple[str, str] | None, steps: int, patience: float) -> None:
        self.ended = threading.Event()
        self._stage = stage
        self._id: str | None = None if source is None else source[0]
        self._name: str | None = None if source is None else source[1]
        self._backend = "loader"
        self._steps = steps
        self._patience = patience
        # Held while the profiler is stopped. The main thread may come to a call from outside in the middle of that.
        self._lock = threading.RLock()
        self._stopping = False
        self._profile = OperatorProfile(self._give_way)
        self._thread: int | None = None
        self._from = self._done = 0
        self._began = self._stopped_at = self._moved = 0.0
        self._longest = 0.0
        self._why = ""
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._given_up = False  # nobody waits for the result any more
        self._set_state("running", "waiting for a step to end")

    def start(self) -> None:
        """Return at once, whoever holds the GIL (see `loaders.switching.preparation`)."""
        at_boundary(self._id, self._boundary)
        thread = threading.Thread(target=self._drive, name="kernel-monitor-profile", daemon=True)
        _thread.start_new_thread(thread.start, ())

    def end_here(self) -> None:
        """End it if it is this thread's."""
        if self._begun.is_set() and self._thread == threading.get_ident():
            self._stop("The loop ended")

    # -- the loop's thread ------------------------------------------------------------------------------------------

    def _boundary(self, info: BoundaryInfo) -> bool:
        now = time.monotonic()
        if not self._begun.is_set():
            return self._begin(info)
        if self._stopped.is_set():
            return False
        if info.loader_id != self._id:  # a loop inside the profiled one, or one that runs elsewhere
            if self._thread == threading.get_ident():
                info.flag(PROFILED)
            return True
        self._longest = max(self._longest, now - self._moved)
        self._moved = now
        self._done = info.steps - self._from
        if self._done >= self._steps or self._given_up:
            self._stop("" if self._done >= self._steps else "It was given up")
            if self._given_up:
                self._let_go(info)
            return False
        self._set_state("running", f"step {self._done + 1} of {self._steps}")
        info.flag(PROFILED)
        return True

    def _begin(self, info: BoundaryInfo) -> bool:
        with self._lock:
            if self._given_up:
                return False
            self._begun.set()
        self._thread = threading.get_ident()
        self._from = info.steps
        self._id = self._name = info.loader_id
        for source in self._stage.sources():
            if source.id == self._id:
                self._name, self._backend = source.name, str(source.state()["backend"])
                totals = source.meter.totals()
                self._longest = totals.step_s / totals.steps if totals.steps else 0.0
        try:
            self._profile.start()
        except Exception as error:  # noqa: BLE001 - the training goes on; the state says what was wrong
            self._why = _words(error)
            self._stopped.set()
            return False
        self._began = self._moved = time.monotonic()
        self._set_state("running", f"step 1 of {self._steps}")
        info.flag(PROFILED)
        return True

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopping or self._stopped.is_set():
                return
            self._stopping = True
            self._stopped_at = time.monotonic()
            try:
                self._profile.stop()
            except Exception as error:  # noqa: BLE001 - the training goes on; the state says what was wrong
                self._done, why = 0, _words(error)
            finally:
                self._stopping = False
            self._why = why
            if self._done and not self._given_up:
                # Set here, not by the thread that reads the trace: a cell that ends at once must find it.
                self._set_state("running", READING)
            self._stopped.set()

    def _let_go(self, info: BoundaryInfo) -> bool:
        """Free the profiler's memory between two steps; the step that is longer for it is flagged."""
        if self._profile.let_go():
            info.flag(PROFILED)
        return False

    def _give_way(self) -> None:
        """The loop's own code starts a profiler: ours has been stopped."""
        with self._lock:
            self._stopped_at = time.monotonic()
            self._why = "A profiler of the loop's own took over"
            self._stopped.set()

    # -- its own thread ---------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._follow()
            if self._done == 0:
                self._set_state(
                    "failed", self._why if self._why.endswith(".") else f"{self._why} before a whole step did."
                )
            else:
                self._report()
        except Exception as error:  # on a thread of our own: the page must get an end
            if not isinstance(error, MonitorError):
                log.exception("profiling failed")
            self._set_state("failed", _words(error))
        finally:
            self._profile.let_go()  # where the loop reached no boundary meanwhile
            self.ended.set()

    def _follow(self) -> None:
        """Wait until the profiler has stopped."""
        self._begun.wait(self._patience)
        with self._lock:
            if not self._begun.is_set():
                self._given_up = True
                what = f"of {self._name} " if self._name else ""
                raise MonitorError(
                    f"No step {what}ended within {self._patience:g} s: start the loop, then profile. "
                    "In the loop itself call monitor.profile(wait=False)."
                )
        while not self._stopped.wait(0.25):
            patience = max(STALL_S, STALL_STEPS * self._longest)
            if self._moved and time.monotonic() - self._moved > patience:
                self._stop_from_outside(f"No step ended for {patience:.0f} s")
                return

    def _stop_from_outside(self, why: str) -> None:
        """Have the loop's thread stop the profiler though the loop reaches no step boundary any more."""
        if self._thread == threading.main_thread().ident:
            run_on_main_thread(lambda: self._stop_late(why))
            self._stopped.wait(TO_STOP_S)
        with self._lock:  # the thread may be stopping it now
            if self._stopped.is_set():
                return
            self._given_up = True
        raise MonitorError(f"{why}, and the profiler can only be stopped by the loop's own thread: nothing was kept.")

    def _stop_late(self, why: str) -> None:
        """Runs on the main thread whenever that is free: perhaps long after `TO_STOP_S`."""
        self._stop(why)
        if self._given_up:
            self._profile.let_go()

    def _report(self) -> None:
        self._set_state("running", READING)
        with tempfile.TemporaryDirectory(prefix="kernel-monitor-profile-") as folder:
            raw = Path(folder, "trace.json")
            self._profile.save(raw)
            no_more = at_boundary(self._id, self._let_go)
            try:
                kept = new_trace(self._stage.recording())
                request = {"trace": str(raw), "keep": str(kept)}
                found = json.loads(run_module("kernel_monitor.profiler.operators", json.dumps(request).encode()))
            finally:
                no_more()
        began, ended = (self._stage.session_time(moment) for moment in (self._began, self._stopped_at))
        reason = self._profile.gpu_reason
        if reason is None and not found["gpu"]:
            reason = "no kernel ran in these steps, or CUPTI may not see them (another profiler or missing rights)"
        result: ProfileResult = {
            "loader": self._id,
            "name": self._name,
            "backend": self._backend,
            "began": began,
            "ended": ended,
            "steps": self._done,
            "cpu": found["cpu"],
            "gpu": found["gpu"],
            "gpu_reason": reason,
            "wall_ms": 1e3 * (self._stopped_at - self._began),
            "cpu_ms": found["cpu_ms"],
            "gpu_ms": found["gpu_ms"],
            "trace": found["trace"],
        }
        if began is not None:
            self._stage.add_event("profile", began, loader=self._id, result=result)
        fewer = f"{self._why} after {self._done} of {self._steps} steps." if self._done < self._steps else ""
        where = f"The trace is {kept}: open it at ui.perfetto.dev." if found["trace"] else f"Only {found['problem']}."
        self._set_state("done", " ".join(filter(None, [fewer, where, NOT_WORKERS])), result)

    def _set_state(self, state: TaskState, message: str, result: ProfileResult | None = None) -> None:
        self.state: ProfileState = {
            "state": state,
            "loader": self._id,
            "name": self._name,
            "done": self._done,
            "total": self._steps,
            "message": message,
            "result": result,
        }


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, MonitorError) else f"The profiler failed: {type(error).__name__}: {error}."
