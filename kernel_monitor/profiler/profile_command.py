"""The command *Profile 10 steps*: starts one profile at a time, and has the newest one's state, result and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MonitorError
from ..protocol.analysis_states import ProfileState
from ..text import line
from .profile_run import ProfileContext, ProfileRun

MOST_STEPS = 200  # a profile holds some thousand events a step in memory
PATIENCE_S = 10.0  # how long a step is waited for before there is no loop to profile
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
    """Starts a profile, one at a time, and holds the newest."""

    def __init__(self, context: ProfileContext) -> None:
        self._context = context
        self._run: ProfileRun | None = None

    def start(
        self, steps: int = 10, *, loader: str | None = None, wait: bool = True, patience: float = PATIENCE_S
    ) -> Profile | None:
        """Profile the next steps of the running loop with torch.profiler: operators, kernels, and a trace of them.

        See `Monitor.profile`.
        """
        if type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise MonitorError(f"1 to {MOST_STEPS} steps can be profiled, not {steps!r}.")
        sources = [(source.id, source.name) for source in self._context.sources()]
        chosen = [source for source in sources if loader is not None and line(loader) in source]
        if loader is not None and len(chosen) != 1:
            names = ", ".join(name for _, name in sources) or "none"
            raise MonitorError(f"No single loader is called {loader!r}. Those that can be profiled are: {names}.")
        if self._run is not None and not self._run.ended.is_set():
            raise MonitorError("Steps are being profiled already: wait for that to end.")
        self._context.start()
        run = self._run = ProfileRun(self._context, chosen[0] if chosen else None, steps, patience)
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
        return None if self._run is None else self._run.state

    def ended(self, seconds: float) -> ProfileState | None:
        """`state` once the newest profile has ended, or after so many seconds."""
        if self._run is not None:
            self._run.ended.wait(seconds)
        return self.state

    def end_here(self) -> None:
        """End a profile of this thread's loop with the steps it has: the code that ran the loop has ended."""
        if self._run is not None:
            self._run.end_here()

    def forget_in_child(self) -> None:
        """Forget the run: in a forked child it has no thread."""
        self._run = None


def pairs(before: Result | None, after: Result, table: str) -> list[Pair]:
    """The rows of `table` (`cpu` or `gpu`) of two profiles side by side: those of `after` first, in its order.

    Each with its name; None where it is not among the first rows of a profile.
    """
    rows = {row["name"]: row for row in after[table]}
    old = {} if before is None else {row["name"]: row for row in before[table]}
    return [(name, old.get(name), rows.get(name)) for name in {**rows, **old}]


def text(result: Result, before: Result | None = None) -> str:
    """A profile for people; with `before`, its shares stand beside those of that one."""
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
