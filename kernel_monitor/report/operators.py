"""What the profiler saw: the operators and kernels that took most, before and after side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .markup import Html, el, folded, join, section, table
from .words import clock, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .subject import Subject

TABLES = (("cpu", "CPU operators", "self_ms", "count", "calls"), ("gpu", "GPU kernels", "ms", "launches", "launches"))
"""Of a profile: the key, the heading, the field of its time, that of its count, and what a person calls the count."""


def operators(subject: Subject) -> Html | None:
    """The newest profile beside the one before it of the same loader on another engine; older ones folded."""
    found = [result for event in subject.analysis.profiles if (result := _result(event))]
    if not found:
        return None
    newest = found[-1]
    same = [one for one in found[:-1] if one.get("loader") == newest.get("loader")]
    other = next((one for one in reversed(same) if one.get("backend") != newest.get("backend")), None)
    before = other or (same[-1] if same else None)
    shown = [one for one in (before, newest) if one is not None]
    older = [one for one in found if one not in shown]
    note = (
        "Shares of the time of all operators in the profiled steps; loader workers are not profiled. The profiled "
        "steps are left out of every other figure."
    )
    return section(
        "operators",
        "Operators",
        note,
        *_tables(shown),
        *(el("p", words, class_="of") for words in _words(subject, shown)),
        *(folded(_called(subject, one), *_tables([one])) for one in older),
    )


def _result(event: Mapping[str, Any]) -> dict[str, Any] | None:
    found = event.get("result", event)
    return found if isinstance(found, dict) and ("cpu" in found or "gpu" in found) else None


def _called(subject: Subject, one: Mapping[str, Any]) -> str:
    began = clock(subject.snapshot.schema.origin + float(one.get("began") or 0.0), subject.where)
    name = one.get("name") or one.get("loader") or "the loop"
    return f"{name} on {one.get('backend')}, {one.get('steps')} steps at {began}"


def _words(subject: Subject, shown: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each profile is of, and what it lacks."""
    lines = []
    for one in shown:
        words = [_called(subject, one)]
        if one.get("wall_ms"):
            words.append(f"{number(float(one['wall_ms']))} ms")
        if one.get("gpu_reason"):
            words.append(f"no GPU kernels: {one['gpu_reason']}")
        if one.get("trace"):
            words.append(f"trace {one['trace']}, to be opened in ui.perfetto.dev")
        lines.append(" · ".join(words))
    return lines


def _tables(shown: Sequence[Mapping[str, Any]]) -> list[Html]:
    return [made for which in TABLES if (made := _side_by_side(shown, which)) is not None]


def _side_by_side(shown: Sequence[Mapping[str, Any]], which: tuple[str, str, str, str, str]) -> Html | None:
    """Every operator of either side, by its larger share."""
    part, title, time, count, counted = which
    sides = [{str(row["name"]): row for row in one.get(part) or ()} for one in shown]
    names = {name: max(float(side[name]["share"]) for side in sides if name in side) for side in sides for name in side}
    if not names:
        return None
    rows = []
    for name in sorted(names, key=lambda one: -names[one]):
        cells = []
        for side in sides:
            row = side.get(name)
            cells += [
                f"{100 * float(row['share']):.1f} %" if row else "-",
                f"{number(float(row[time]))} ms" if row else "-",
                f"{int(row[count]):,}" if row else "-",
            ]
        rows.append([name, *cells])
    labels = [f"{label}: " for label in ("before", "after")] if len(shown) == 2 else [""]
    head = ["name", *(f"{label}{word}" for label in labels for word in ("share", "time", counted))]
    backends = " → ".join(str(one.get("backend")) for one in shown)
    heading = f"{title}, {backends}"
    return join(el("h3", heading), table(head, rows, numbers=range(1, len(head)), label=heading))
