"""The first screen: what the loop is bound by, what the last change brought, and images per second before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..analysis import strip
from .formats import duration, is_known
from .segments_section import legend, stack
from .subject import statistic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..analysis.results import Segment
    from ..protocol.states import StripRow
    from .subject import Subject


def verdict(subject: Subject) -> dict[str, Any]:
    """Where a step's time goes, of both sides of the change or of the one segment."""
    judged = [(segment, found) for segment in subject.pair if (found := subject.verdicts.get(segment.key))]
    bars = [(segment, found, stack(found.shares)) for segment, found in judged if found.shares]
    return {"bars": bars, "legend": legend([found.shares for _, found, _ in bars])}


def verdicts(subject: Subject) -> dict[str, Any] | None:
    """The verdict of every segment, with what was missing."""
    segments = [segment.key for segment in subject.analysis.segments]
    judged = [(key, subject.verdicts[key]) for key in segments if key in subject.verdicts]
    return {"judged": judged} if len(judged) > 1 else None


def cannot(subject: Subject) -> dict[str, Any] | None:
    """What the session does not tell, a sentence each; damage of its file among it."""
    damaged = subject.recorded.get("damaged") or ()
    lines = [
        *subject.analysis.cannot,
        *(f"The recording is damaged and was read around it: {piece}" for piece in damaged),
    ]
    return {"lines": dict.fromkeys(lines)} if lines else None


def change(subject: Subject) -> dict[str, Any]:
    """What the newest change brought, in figures: those of the last switch, or of the segments of another change."""
    snapshot = subject.snapshot
    found = strip(snapshot, snapshot.events, snapshot.loaders)
    if found is not None:
        title, sides, text = "What the switch changed:", f"{found['source']} → {found['target']}", found["text"]
        rows = [row for row in found["rows"] if row["label"] not in ("samples", "counted over")]
    elif len(subject.pair) == 2:
        before, after = subject.pair
        title, sides = "What changed:", f"{subject.called(before.key)} → {subject.called(after.key)}"
        counts = " → ".join(f"{side.samples:,} in {duration(side.seconds)}" for side in subject.pair)
        text, rows = f"Images: {counts}.", list(_rows(before, after))
    else:
        # Nothing was changed: the rate alone.
        return {"rated": next((segment for segment in subject.pair if is_known(segment.rate)), None)}
    shown = [{**dict(row), "last": row["unit"] != "images/s"} for row in rows]
    return {"title": title, "sides": sides, "rows": shown, "text": text}


def _rows(before: Segment, after: Segment) -> Iterator[StripRow]:
    """The strip's rows from two segments."""
    yield {"label": "images/s", "unit": "images/s", "before": before.rate, "after": after.rate}
    for label, metric, quantile in (("CPU p95", "cpu", "p95"), ("GPU p50", "gpu", "p50")):
        sides = [found for side in (before, after) if (found := statistic(side, metric)) is not None]
        if len(sides) == 2:
            low, high = (getattr(side.values, quantile) for side in sides)
            yield {"label": label, "unit": "%", "before": low, "after": high}
    yield {"label": "data wait per step", "unit": "ms", "before": before.wait, "after": after.wait}
