"""The interface of `profiler` to the rest of the package: the command *Profile 10 steps*, its magic and its request."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import MonitorError
from ..field_checks import maybe, only, verbatim, whole
from ..plugins import Command, Later, Request
from ..text import line, quoted

if TYPE_CHECKING:
    from ..protocol.analysis_states import ProfileState
    from ..protocol.message_types import FindingsReply
    from ..runtime import Monitor
    from ..runtime.session import Session
    from .profile_run import ProfileRun

MOST_STEPS = 200  # a profile holds some thousand events a step in memory
PATIENCE_S = 600.0  # how long `%monitor profile` waits for a loop in another cell
READING_S = 5.0  # how long the end of a cell waits for a trace that is being read
_WIDEST = 60  # characters of an operator's name in a line of text
Result = Mapping[str, Any]
Pair = tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]


class Profile(dict[str, Any]):
    """The result of a profile, as docs/messages.md has it (*Profile*); as text it is two tables."""

    def __str__(self) -> str:
        return text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - IPython's signature
        printer.text(str(self))


class ProfileCommand:
    """Starts a profile, one at a time, and holds the newest (`runtime.optional_parts.Profiler`)."""

    def __init__(self, session: Session, start: Callable[[], None]) -> None:
        """`start` starts the monitor; one that runs goes on."""
        self._session, self._start = session, start
        self._run: ProfileRun | None = None
        self._answered: Result | None = None  # by `answer`, the last time

    def start(self, steps: int, *, loader: str | None, wait: bool, patience: float) -> Profile | None:
        """Profile the next steps of the running loop with torch.profiler: operators, kernels, and a trace of them.

        See `Monitor.profile`.
        """
        from .profile_run import ProfileRun

        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise MonitorError(f"1 to {MOST_STEPS} steps can be profiled, not {quoted(steps)}.")
        sources = [(source.id, source.name) for source in self._session.tracker.sources()]
        chosen = [source for source in sources if loader is not None and line(loader) in source]
        if loader is not None and len(chosen) != 1:
            names = line(", ".join(name for _, name in sources) or "none", 120)
            raise MonitorError(f"No single loader is called {quoted(loader)}. Those that can be profiled are: {names}.")
        if self._run is not None and not self._run.ended.is_set():
            raise MonitorError("Steps are being profiled already: wait for that to end.")
        self._start()
        run = self._run = ProfileRun(self._session, chosen[0] if chosen else None, steps, patience)
        run.start()
        if not wait:
            return None
        run.ended.wait()
        if run.state["state"] != "done":
            raise MonitorError(run.state["message"])
        return Profile(run.state["result"] or {})

    @property
    def state(self) -> ProfileState | None:
        """Its state: `state` (`running`, `done`, `failed`), `loader`, `done` and `total` (steps), `message` and
        `result`; None before the first one."""
        return None if self._run is None else self._run.state

    def ended(self, seconds: float) -> ProfileState | None:
        """Return `state` once the newest profile has ended, or after so many seconds."""
        if self._run is not None:
            self._run.ended.wait(seconds)
        return self.state

    def answer(self) -> str | None:
        """Return the newest profile's result beside the one that was answered before; None while it runs.

        Waits some seconds for a trace that is being read.
        """
        state = self.state
        if self._run is not None and self._run.reading:
            state = self.ended(READING_S)
        if state is None or state["state"] == "running":
            return None
        if state["result"] is None:
            return f"not profiled: {state['message']}"
        result: Result = state["result"]
        before, self._answered = self._answered, result
        if before is not None and before["loader"] != result["loader"]:
            before = None
        return f"{text(result, before)}\n{state['message']}"

    def end_here(self) -> None:
        """End a profile of this thread's loop with the steps it has: the code that ran the loop has ended."""
        if self._run is not None:
            self._run.end_here()

    def forget_in_child(self) -> None:
        """Forget the run: in a forked child it has no thread."""
        self._run = None


def profiler(session: Session, start: Callable[[], None]) -> ProfileCommand:
    """Return the profiler of a session; `start` starts the monitor."""
    return ProfileCommand(session, start)


# ---- `%monitor profile`, and the request of a page.


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--loader", default=None)
    parser.add_argument("steps", nargs="?", type=int, default=10, metavar="N")


def _profile(monitor: Monitor, options: argparse.Namespace) -> Later:
    steps = options.steps
    monitor.profile(steps, loader=options.loader, wait=False, patience=PATIENCE_S)
    which = "the next step" if steps == 1 else f"the next {steps} steps"
    return Later(f"profiling {which}", cast("ProfileCommand", monitor.profiler).answer)


def _answer_profile(monitor: Monitor, args: Mapping[str, Any]) -> FindingsReply:
    monitor.profile(args["steps"], loader=args["loader"], wait=False)
    return {"status": "ok", "profiling": monitor.profiling}


MAGICS = (
    Command(
        "profile",
        """%monitor profile [N] [--loader LOADER]
                                torch.profiler over the next N steps (default 10); the result stands under the cell""",
        _profile,
        _add_profile,
    ),
)
_PROFILE = only(loader=(maybe(verbatim(200)), None), steps=(whole(1, MOST_STEPS), 10))
REQUESTS = (Request("profile", _answer_profile, _PROFILE),)


# ---- A profile as text.


def pairs(before: Result | None, after: Result, table: str) -> list[Pair]:
    """Return the rows of `table` (`cpu` or `gpu`) of two profiles side by side: those of `after` first, in its order.

    Each with its name; None where it is not among the first rows of a profile.
    """
    rows = {row["name"]: row for row in after[table]}
    old = {} if before is None else {row["name"]: row for row in before[table]}
    return [(name, old.get(name), rows.get(name)) for name in {**rows, **old}]


def text(result: Result, before: Result | None = None) -> str:
    """Return a profile for people; with `before`, its shares stand beside those of that one."""
    steps, wall = result["steps"], result["wall_ms"]
    lines = [f"{result['name']}, {result['backend']}: {steps} steps in {wall:,.0f} ms"]
    lines += _table("CPU operators", "own time", pairs(before, result, "cpu"), "self_ms", "count", "calls", before)
    if result["gpu"]:
        lines += _table("GPU kernels", "time", pairs(before, result, "gpu"), "ms", "launches", "launches", before)
    else:
        lines.append(f"no GPU kernels: {result['gpu_reason']}")
    return "\n".join(lines)


def _table(
    title: str, time: str, rows: Sequence[Pair], ms: str, count: str, counted: str, before: Result | None
) -> list[str]:
    if not rows:
        return [f"no {title}: nothing ran through torch in these steps"]
    beside = "" if before is None else f"{_short(str(before['backend']), 12):>14}"
    lines = [f"{title:<{_WIDEST}}{'share':>8}{time + ', ms':>14}{counted:>10}{beside}"]
    for name, old, new in rows:
        own = f"{'–':>8}{'':>24}"
        if new is not None:
            own = f"{100 * new['share']:>6.1f} %{new[ms]:>14,.1f}{new[count]:>10,}"
        was = ""
        if before is not None:
            was = f"{'–':>14}" if old is None else f"{100 * old['share']:>12.1f} %"
        lines.append(f"{_short(name, _WIDEST - 2):<{_WIDEST}}{own}{was}")
    return lines


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
