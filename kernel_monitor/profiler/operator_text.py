"""Operators and GPU kernels of a profile as text, beside those of the profile before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Result = Mapping[str, Any]
WIDEST = 60  # characters of a name in a line of text


class Pair(NamedTuple):
    """One operator or kernel in two profiles; None where it is not among the first rows of that one."""

    name: str  # the operator's or the kernel's
    before: Mapping[str, Any] | None  # before, after: its row
    after: Mapping[str, Any] | None


def pairs(before: Result | None, after: Result, table: str) -> list[Pair]:
    """The rows of `table` (`cpu` or `gpu`) of two profiles side by side: those of `after` first, in its order."""
    rows = {row["name"]: row for row in after[table]}
    old = {} if before is None else {row["name"]: row for row in before[table]}
    return [Pair(name, old.get(name), rows.get(name)) for name in [*rows, *(name for name in old if name not in rows)]]


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
    lines = [f"{title:<{WIDEST}}{'share':>8}{time + ', ms':>14}{counted:>10}{beside}"]
    for name, old, new in rows:
        own = f"{'–':>8}{'':>24}"
        if new is not None:
            own = f"{100 * new['share']:>6.1f} %{new[ms]:>14,.1f}{new[count]:>10,}"
        was = ""
        if before is not None:
            was = f"{'–':>14}" if old is None else f"{100 * old['share']:>12.1f} %"
        lines.append(f"{_short(name, WIDEST - 2):<{WIDEST}}{own}{was}")
    return lines


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
