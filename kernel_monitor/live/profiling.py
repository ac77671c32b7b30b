"""*Profile 10 steps*: torch's profiler over some steps of the running loop, from one step boundary to another."""

from __future__ import annotations

import _thread
import json
import logging
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnose.operators import text
from ..errors import MonitorError
from ..steps.boundary import at_boundary
from ..steps.mainthread import run_on_main_thread
from ..steps.operators import TOP
from ..steps.profile import OperatorProfile
from ..steps.records import PROFILED
from ..steps.traces import new_trace
from ..stream.render import run_module
from ..text import line

if TYPE_CHECKING:
    from ..steps.boundary import BoundaryInfo
    from .sampling import Sampling

MOST_STEPS = 200
"""A profile holds some thousand events a step in memory."""
PATIENCE_S = 10.0
"""How long a step is waited for before there is no loop to profile."""
STALL_S = 10.0
STALL_STEPS = 5.0
"""A profiled loop that ends no step for so long, or for so many of its steps, is over."""
TO_STOP_S = 60.0
"""How long the main thread may take until it gets to stopping the profiler."""
READING = "reading the trace"
"""The message of a profile whose steps are over."""
NOT_WORKERS = "What runs in the loader's worker processes is not in it."

State = dict[str, Any]
log = logging.getLogger(__name__)


class Profile(dict[str, Any]):
    """What a profile found, as docs/architecture.md has it (*Profile*); as text it is two tables."""

    def __str__(self) -> str:
        return text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's signature
        printer.text(str(self))


class Profiling(ABC):
    """The part of the monitor that profiles steps."""

    _sampling: Sampling
    _profile: Run | None = None

    @abstractmethod
    def start(self) -> None:
        """Start sampling; what runs goes on."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether samples are taken."""

    def profile(
        self, steps: int = 10, *, loader: str | None = None, wait: bool = True, patience: float = PATIENCE_S
    ) -> Profile | None:
        """Profile the next steps of the running loop with torch.profiler: operators, kernels, and a trace of them.

        It starts and stops on the loop's own thread between two steps. The steps are marked as profiled, for they
        take longer, and are left out of every other figure; in the loop itself call it with `wait=False`.

        Args:
            steps: 1 to 200.
            loader: id or name of the loader (or of `monitor.step`'s source) whose steps count; whichever steps next,
                if it is left out.
            wait: until it is done; else `profiling` says how far it is.
            patience: s to wait for the first step.

        Returns:
            What was found; None with `wait=False`.

        Raises:
            MonitorError: there is no such loader, a profile is under way, or it failed; the message says why.
        """
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise MonitorError(f"1 to {MOST_STEPS} steps can be profiled, not {steps!r}.")
        chosen = None if loader is None else self._source(loader)
        under_way = self._profile
        if under_way is not None and not under_way.ended.is_set():
            raise MonitorError("Steps are being profiled already: wait for that to end.")
        if not self.running:
            self.start()
        run = self._profile = Run(self._sampling, chosen, steps, patience)
        run.start()
        if not wait:
            return None
        run.ended.wait()
        if run.state["state"] != "done":
            raise MonitorError(run.state["message"])
        return Profile(run.state["result"])

    @property
    def profiling(self) -> State | None:
        """How far the newest profile is: `state` (`running`, `done`, `failed`), `loader`, `done` and `total` (steps),
        `message`, `result`; None before the first one."""
        run = self._profile
        return None if run is None else run.state

    def profile_ended(self, seconds: float) -> State | None:
        """`profiling` once the newest profile has ended, or after so many seconds."""
        run = self._profile
        if run is not None:
            run.ended.wait(seconds)
        return self.profiling

    def end_profile_here(self) -> None:
        """The code that this thread ran has ended, and with it the loop: a profile of it ends with what it has."""
        run = self._profile
        if run is not None:
            run.end_here()

    def _source(self, loader: str) -> tuple[str, str]:
        sources = [(one.id, one.name) for one in self._sampling.following.sources()]
        chosen = [one for one in sources if line(loader) in one]
        if len(chosen) != 1:
            names = ", ".join(name for _, name in sources) or "none"
            raise MonitorError(f"No single loader is called {loader!r}. Those that can be profiled are: {names}.")
        return chosen[0]


class Run:
    """One profile. `_boundary` runs on the loop's thread, everything after the last step on one of its own.

    Args:
        sampling: gets the event, and knows where the recording is.
        source: id and name of the loader whose steps count; None: whichever steps next.
        steps: how many.
        patience: s to wait for the first.
    """

    def __init__(self, sampling: Sampling, source: tuple[str, str] | None, steps: int, patience: float) -> None:
        self.ended = threading.Event()
        self._sampling = sampling
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
        self._given_up = False
        self.state: State = {}
        self._say("running", "waiting for a step to end")

    def start(self) -> None:
        """Return at once, whoever holds the GIL (see `loaders.switch.prepare_in_background`)."""
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
            if self._given_up:  # nobody reads it any more
                self._let_go(info)
            return False
        self._say("running", f"step {self._done + 1} of {self._steps}")
        info.flag(PROFILED)
        return True

    def _begin(self, info: BoundaryInfo) -> bool:
        with self._lock:
            if self._given_up:
                return False
            self._begun.set()
        self._thread = threading.get_ident()
        self._from = info.steps
        self._know(info.loader_id)
        try:
            self._profile.start()
        except Exception as error:  # noqa: BLE001 - the training goes on; the state says what was wrong
            self._why = _words(error)
            self._stopped.set()
            return False
        self._began = self._moved = time.monotonic()
        self._say("running", f"step 1 of {self._steps}")
        info.flag(PROFILED)
        return True

    def _know(self, loader: str) -> None:
        self._id, self._name = loader, loader
        for one in self._sampling.following.sources():
            if one.id == loader:
                self._id, self._name = one.id, one.name
                self._backend = str(one.state()["backend"])
                totals = one.meter.totals()
                self._longest = totals.step_s / totals.steps if totals.steps else 0.0

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopping or self._stopped.is_set():
                return
            self._stopping = True
            self._stopped_at = time.monotonic()
            try:
                self._profile.stop()
            except Exception as error:  # noqa: BLE001 - as above
                self._done, why = 0, _words(error)
            finally:
                self._stopping = False
            self._why = why
            if self._done and not self._given_up:
                # Said here, not by the thread that reads it: a cell that ends at once must know that there is one.
                self._say("running", READING)
            self._stopped.set()

    def _let_go(self, info: BoundaryInfo) -> bool:
        """What the profiler still holds is freed here, where no step is under way: it takes a part of one."""
        if self._profile.let_go():
            info.flag(PROFILED)
        return False

    def _give_way(self) -> None:
        with self._lock:
            self._stopped_at = time.monotonic()
            self._why = "A profiler of the loop's own took over"
            self._stopped.set()

    # -- its own thread ---------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        try:
            self._follow()
            if self._done == 0:
                self._say("failed", self._why if self._why.endswith(".") else f"{self._why} before a whole step did.")
            else:
                self._report()
        except Exception as error:  # whatever it was, the page must not wait for ever
            if not isinstance(error, MonitorError):
                log.exception("profiling failed")
            self._say("failed", _words(error))
        finally:
            self._profile.let_go()  # of a loop that came to no boundary meanwhile
            self.ended.set()

    def _follow(self) -> None:
        """Until the profiler has stopped."""
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
        """The loop is over and comes to no boundary any more: its thread has to stop the profiler all the same.

        Raises:
            MonitorError: that thread cannot be reached.
        """
        if self._thread == threading.main_thread().ident:
            run_on_main_thread(lambda: self._stop_late(why))
            self._stopped.wait(TO_STOP_S)
        with self._lock:  # it may be at it
            if self._stopped.is_set():
                return
            self._given_up = True
        raise MonitorError(f"{why}, and the profiler can only be stopped by the loop's own thread: nothing was kept.")

    def _stop_late(self, why: str) -> None:
        """On the main thread, whenever it gets to it: perhaps long after anybody waited for it."""
        self._stop(why)
        if self._given_up:  # nobody reads it any more
            self._profile.let_go()

    def _report(self) -> None:
        self._say("running", READING)
        with tempfile.TemporaryDirectory(prefix="kernel-monitor-profile-") as folder:
            raw = Path(folder, "trace.json")
            self._profile.save(raw)
            no_more = at_boundary(self._id, self._let_go)
            try:
                kept = new_trace(self._sampling.recording.to_json()["path"])
                request = {"trace": str(raw), "keep": str(kept), "top": TOP}
                found = json.loads(run_module("kernel_monitor.steps.operators", json.dumps(request).encode()))
            finally:
                no_more()
        began, ended = (self._sampling.session_time(one) for one in (self._began, self._stopped_at))
        reason = self._profile.gpu_reason
        if reason is None and not found["gpu"]:
            reason = "no kernel ran in these steps, or CUPTI may not see them (another profiler or missing rights)"
        result = {
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
            self._sampling.add_event("profile", began, loader=self._id, result=result)
        fewer = f"{self._why} after {self._done} of {self._steps} steps." if self._done < self._steps else ""
        where = f"The trace is {kept}: open it at ui.perfetto.dev." if found["trace"] else f"Only {found['problem']}."
        self._say("done", " ".join(filter(None, [fewer, where, NOT_WORKERS])), result)

    def _say(self, state: str, message: str, result: State | None = None) -> None:
        self.state = {
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
