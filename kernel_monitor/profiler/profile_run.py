"""One run of *Profile 10 steps*: torch's profiler from one step boundary to another, then the trace as tables."""

from __future__ import annotations

import _thread
import inspect
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..steps.boundary import call_between_steps, run_on_main_thread
from ..steps.measured_step import PROFILED
from ..stream.render_process import run_module
from ..text import log_failed
from .operators import new_trace

if TYPE_CHECKING:
    from ..protocol.analysis_states import ProfileResult, ProfileState, TaskState
    from ..runtime.session import Session
    from ..steps.boundary import BoundaryInfo


# ---- torch.profiler on the thread of a training loop; gives way to a profiler that the loop's own code starts.

OTHER = "Another profiler is running in this process: only one can at a time. Profile again when it has ended."
# The least severe message that kineto, torch.profiler's C++ part, may write to stderr: none. At its own default it
# writes two lines into the cell's output for each profile, and an error where there is no GPU.
_SILENT = "99"


class OperatorProfile:
    """One profile: `start`, `stop` (both on the loop's thread), `save` (on any), `let_go` (between two steps).

    `displaced` is called, on the loop's thread, when the loop's own code starts a profiler in the meantime. Ours has
    been stopped by then and gives way.
    """

    def __init__(self, displaced: Callable[[], None]) -> None:
        self._displaced = displaced
        self._profile: Any = None
        self._running = False
        self._give_back: Callable[[], None] | None = None
        self.gpu_reason: str | None = None

    def start(self) -> None:
        """Raises a `MonitorError` where there is no torch in this process, or another profiler is running."""
        if "torch" not in sys.modules:
            raise MonitorError("Nothing to profile: torch is not in use in this process.")
        import torch
        from torch.profiler import ProfilerActivity

        if in_use():
            raise MonitorError(OTHER)
        activities = [ProfilerActivity.CPU]
        self.gpu_reason = gpu_reason()
        if self.gpu_reason is None:
            activities.append(ProfilerActivity.CUDA)
        with _silence():
            # Where torch clears the events of each cycle, it warns that it does; not in all versions.
            known = inspect.signature(torch.profiler.profile).parameters
            more: dict[str, Any] = {"acc_events": True} if "acc_events" in known else {}
            self._profile = torch.profiler.profile(activities=activities, **more)
            self._give_back = _watch_for_others(self._profile, self._give_way)
            try:
                self._profile.start()
            except BaseException:
                self._give_back()
                raise
        self._running = True

    def stop(self) -> None:
        """End; does nothing where it has ended."""
        if not self._running:
            return
        self._running = False
        if self._give_back is not None:
            self._give_back()
        self._profile.stop()

    def save(self, path: Path) -> None:
        """Write the trace as JSON; raises a `MonitorError` where the profiler has no results."""
        profile = self._profile
        # Without results torch would follow a null pointer.
        if profile is None or getattr(profile.profiler, "kineto_results", None) is None:
            raise MonitorError("The profiler of torch returned no trace.")
        profile.export_chrome_trace(str(path))

    def let_go(self) -> bool:
        """Free the memory of a profile that has ended; returns whether there was any.

        It may take as long as a step (`freed` in `benchmarks.stalls`), and the GIL is held. torch's object is in a
        cycle with its own methods: left to Python's collector, it would be freed at any time, in the middle of a step.
        """
        if self._running or self._profile is None:
            return False
        profile, self._profile = self._profile, None
        if profile.profiler is not None:
            profile.profiler.kineto_results = None
        return True

    def _give_way(self) -> None:
        self.stop()
        self._displaced()


def in_use() -> bool:
    """Return whether a profiler runs in this process, on this thread or, as far as torch tells, on another."""
    from torch import autograd

    here: Callable[[], bool] = getattr(autograd, "_profiler_enabled", lambda: False)
    return here() or bool(getattr(autograd.profiler, "_is_profiler_enabled", False))


def gpu_reason() -> str | None:
    """Return why kernels of a GPU cannot be listed; None if they can."""
    import torch
    from torch.profiler import ProfilerActivity, supported_activities

    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use"
    if ProfilerActivity.CUDA not in supported_activities():
        return "this torch is built without CUPTI, which lists the kernels"
    return None if torch.cuda.is_initialized() else "this process has not used the GPU"


def _watch_for_others(ours: Any, give_way: Callable[[], None]) -> Callable[[], None]:
    """Have `give_way` called before another profiler starts on this thread; returns what ends that.

    Two profilers on a thread take each other's results, and asking for those of the loser crashes the process.
    """
    from torch.autograd import profiler

    profile: Any = profiler.profile
    original = getattr(profile, "_prepare_trace", None)
    if original is None:
        return lambda: None
    thread = threading.get_ident()

    def prepare(self: Any) -> Any:
        if self is not getattr(ours, "profiler", None) and threading.get_ident() == thread:
            give_way()
        return original(self)

    def give_back() -> None:
        if profile._prepare_trace is prepare:
            profile._prepare_trace = original

    profile._prepare_trace = prepare
    return give_back


@contextmanager
def _silence() -> Iterator[None]:
    """Kineto reads this variable once, when it is first used."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(name, None)


STALL_S = 10.0
_STALL_STEPS = 5.0  # a profiled loop that ends no step for so long, or for so many of its steps, is over
TO_STOP_S = 60.0  # how long the main thread may take until it gets to stopping the profiler
_READING = "reading the trace"  # the message of a profile whose steps are over
_NOT_WORKERS = "What runs in the loader's worker processes is not in it."

log = logging.getLogger(__name__)


class ProfileRun:
    """One profile: `_boundary` runs on the loop's thread, everything after the last step on a thread of its own.

    `source` is id and name of the loader whose steps count (None: whichever steps next), `patience` the s to wait for
    the first of them.
    """

    def __init__(self, session: Session, source: tuple[str, str] | None, steps: int, patience: float) -> None:
        self.ended = threading.Event()
        self._session = session
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
        call_between_steps(self._id, self._boundary)
        thread = threading.Thread(target=self._drive, name="kernel-monitor-profile", daemon=True)
        _thread.start_new_thread(thread.start, ())

    @property
    def reading(self) -> bool:
        """Its steps are over, and its trace is being read."""
        return self.state["message"] == _READING

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
        for source in self._session.tracker.sources():
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
                self._set_state("running", _READING)
            self._stopped.set()

    def _let_go(self, info: BoundaryInfo) -> bool:
        """Free the profiler's memory between two steps; the step that is longer for it is flagged."""
        if self._profile.let_go():
            info.flag(PROFILED)
        return False

    def _give_way(self) -> None:
        """Give way to a profiler that the loop's own code starts: ours has been stopped."""
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
        except Exception as error:  # noqa: BLE001 - on a thread of our own: the page must get an end
            if not isinstance(error, MonitorError):
                log_failed(log, "profiling failed")
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
            patience = max(STALL_S, _STALL_STEPS * self._longest)
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
        self._set_state("running", _READING)
        with tempfile.TemporaryDirectory(prefix="kernel-monitor-profile-") as folder:
            raw = Path(folder, "trace.json")
            self._profile.save(raw)
            no_more = call_between_steps(self._id, self._let_go)
            try:
                kept = new_trace(self._session.recorder.to_json()["path"])
                request = {"trace": str(raw), "keep": str(kept)}
                found = json.loads(run_module("kernel_monitor.profiler.operators", json.dumps(request).encode()))
            finally:
                no_more()
        began, ended = (self._session.session_time(moment) for moment in (self._began, self._stopped_at))
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
            self._session.add_event("profile", began, loader=self._id, result=result)
        fewer = f"{self._why} after {self._done} of {self._steps} steps." if self._done < self._steps else ""
        where = f"The trace is {kept}: open it at ui.perfetto.dev." if found["trace"] else f"Only {found['problem']}."
        self._set_state("done", " ".join(filter(None, [fewer, where, _NOT_WORKERS])), result)

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
