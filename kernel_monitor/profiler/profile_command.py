"""The command *Profile 10 steps*: starts one profile at a time, and has the state and the result of the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..text import line
from .operator_text import text
from .profile_run import READING, ProfileRun, Session

if TYPE_CHECKING:
    from ..protocol.analysis_states import ProfileState

__all__ = ["READING", "Profile", "ProfileCommand"]

MOST_STEPS = 200  # a profile holds some thousand events a step in memory
PATIENCE_S = 10.0  # how long a step is waited for before there is no loop to profile


class Profile(dict[str, Any]):
    """What a profile found, as docs/messages.md has it (*Profile*); as text it is two tables."""

    def __str__(self) -> str:
        return text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's signature
        printer.text(str(self))


class ProfileCommand:
    """Starts a profile, one at a time, and holds the newest.

    Args:
        session: whose loops are profiled.
        start: starts the sampler; one that runs goes on.
    """

    def __init__(self, session: Session, start: Callable[[], None]) -> None:
        self._session = session
        self._start = start
        self._run: ProfileRun | None = None

    def start(
        self, steps: int = 10, *, loader: str | None = None, wait: bool = True, patience: float = PATIENCE_S
    ) -> Profile | None:
        """Profile the next steps of the running loop with torch.profiler: operators, kernels, and a trace of them.

        It starts and stops on the loop's own thread between two steps. The steps are marked as profiled, for they
        take longer, and are left out of every other figure; in the loop itself call it with `wait=False`.

        Args:
            steps: 1 to 200.
            loader: id or name of the loader (or of `monitor.step`'s source) whose steps count; whichever steps next,
                if it is left out.
            wait: until it is done; else `profiling` has its progress.
            patience: s to wait for the first step.

        Returns:
            What was found; None with `wait=False`.

        Raises:
            MonitorError: there is no such loader, a profile is under way, or it failed; the message says why.
        """
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise MonitorError(f"1 to {MOST_STEPS} steps can be profiled, not {steps!r}.")
        chosen = None if loader is None else self._source(loader)
        under_way = self._run
        if under_way is not None and not under_way.ended.is_set():
            raise MonitorError("Steps are being profiled already: wait for that to end.")
        self._start()
        run = self._run = ProfileRun(self._session, chosen, steps, patience)
        run.start()
        if not wait:
            return None
        run.ended.wait()
        if run.state["state"] != "done":
            raise MonitorError(run.state["message"])
        return Profile(run.state["result"] or {})

    @property
    def state(self) -> ProfileState | None:
        """How far the newest profile is: `state` (`running`, `done`, `failed`), `loader`, `done` and `total` (steps),
        `message`, `result`; None before the first one."""
        run = self._run
        return None if run is None else run.state

    def ended(self, seconds: float) -> ProfileState | None:
        """`state` once the newest profile has ended, or after so many seconds."""
        run = self._run
        if run is not None:
            run.ended.wait(seconds)
        return self.state

    def end_here(self) -> None:
        """End a profile of this thread's loop with the steps it has: the code that ran the loop has ended."""
        run = self._run
        if run is not None:
            run.end_here()

    def forget_in_child(self) -> None:
        """Forget the run: in a forked child it has no thread."""
        self._run = None

    def _source(self, loader: str) -> tuple[str, str]:
        sources = [(source.id, source.name) for source in self._session.tracker.sources()]
        chosen = [source for source in sources if line(loader) in source]
        if len(chosen) != 1:
            names = ", ".join(name for _, name in sources) or "none"
            raise MonitorError(f"No single loader is called {loader!r}. Those that can be profiled are: {names}.")
        return chosen[0]
