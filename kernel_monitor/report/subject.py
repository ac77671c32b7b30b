"""What a report is about: the session, what was found in it, and the two segments that its first screen compares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timezone
from functools import cached_property
from typing import Any

from ..analysis.loops import aside
from ..analysis.results import Analysis, Change, Segment, Statistic, Verdict
from ..store import Snapshot
from .formats import clock


@dataclass(frozen=True, eq=False)
class Subject:
    """A session with its analysis."""

    snapshot: Snapshot  # freed of what must not be sent to anybody (`privacy.clean`)
    analysis: Analysis  # of this snapshot
    where: timezone  # the zone of the times that people read

    @property
    def recorded(self) -> dict[str, Any]:
        """The recording's own facts; empty for a live session."""
        found = self.snapshot.facts.get("recorded")
        return found if isinstance(found, dict) else {}

    @property
    def bin_s(self) -> float | None:
        """Seconds of the bins whose means a recording's rows are; None where they are as they were measured."""
        return float(self.recorded["bin_s"]) if self.recorded.get("bin_s") else None

    @cached_property
    def segments(self) -> dict[str, Segment]:
        """By their keys."""
        return {segment.key: segment for segment in self.analysis.segments}

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """By the keys of the segments that they are of."""
        return {found.segment: found for found in self.analysis.verdicts if found.segment is not None}

    @cached_property
    def aside(self) -> frozenset[str]:
        """Ids of the loaders whose loops stand beside the training."""
        return aside(self.snapshot.steps, self.analysis.segments)

    @cached_property
    def change(self) -> Change | None:
        """The change that the report is about: the switch that says most, or whatever else divides two segments.

        One of a loop that stands beside no other comes first: a mark divides the evaluation, too.
        """
        if self.analysis.headline is not None:
            return self.analysis.headline
        known = [
            change
            for change in self.analysis.changes
            if change.before in self.segments and change.after in self.segments
        ]
        if not known:
            return None

        def weight(change: Change) -> tuple[bool, bool, float]:
            after = self.segments[change.after]
            return after.began_by == "switch", after.loader not in self.aside, after.start

        return max(known, key=weight)

    @cached_property
    def pair(self) -> tuple[Segment, ...]:
        """Both sides of that change; the segment that the verdict is of where nothing changed; none without any."""
        if self.change is not None:
            return self.segments[self.change.before], self.segments[self.change.after]
        key = self.analysis.verdict.segment
        if key in self.segments:
            return (self.segments[str(key)],)
        return self.analysis.segments[-1:]

    def clock(self, time: float) -> str:
        """A session time as people read it: `19:07:31.4`."""
        return clock(self.snapshot.schema.origin + float(time), self.where)

    def called(self, key: str | None) -> str:
        """`train/2 · dali-cpu`, with the words of the mark that began it; the key where there is no such segment."""
        segment = self.segments.get(str(key))
        if segment is None:
            return "the session" if key is None else key
        label = f" “{segment.label}”" if segment.label else ""
        return f"{segment.key} · {segment.backend}{label}"


def statistic(segment: Segment, metric: str) -> Statistic | None:
    """The spread of one metric; None where it was not measured."""
    return next((found for found in segment.statistics if found.metric == metric), None)
