"""What a report is about: the session, what was found in it, and the two stretches that its first screen compares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..diagnose.loops import beside, of_stretches

if TYPE_CHECKING:
    from datetime import timezone

    from ..diagnose.model import Analysis, Change, Statistic, Stretch, Verdict
    from ..store import Snapshot


@dataclass(frozen=True, eq=False)
class Subject:
    """A session with its analysis.

    Attributes:
        snapshot: freed of what must not be sent to anybody (`privacy.clean`).
        analysis: of this snapshot.
        where: the zone of the times that people read.
    """

    snapshot: Snapshot
    analysis: Analysis
    where: timezone

    @cached_property
    def stretches(self) -> dict[str, Stretch]:
        """By their keys."""
        return {one.key: one for one in self.analysis.stretches}

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """By the keys of the stretches that they are of."""
        return {one.stretch: one for one in self.analysis.verdicts if one.stretch is not None}

    @cached_property
    def change(self) -> Change | None:
        """The change that the report is about: the newest switch, or whatever else divides two stretches.

        One of a loop that stands beside no other comes first: a mark divides the evaluation, too.
        """
        known = [one for one in self.analysis.changes if one.before in self.stretches and one.after in self.stretches]
        if not known:
            return None

        aside = beside(of_stretches(self.analysis.stretches))

        def weight(one: Change) -> tuple[bool, bool, float]:
            after = self.stretches[one.after]
            return after.began_by == "switch", after.loader not in aside, after.start

        return max(known, key=weight)

    @cached_property
    def pair(self) -> tuple[Stretch, ...]:
        """Both sides of that change; the stretch that the verdict is of where nothing changed; none without any."""
        if self.change is not None:
            return self.stretches[self.change.before], self.stretches[self.change.after]
        key = self.analysis.verdict.stretch
        if key in self.stretches:
            return (self.stretches[str(key)],)
        return self.analysis.stretches[-1:]

    def called(self, key: str | None) -> str:
        """`train/2 · dali-cpu`, with the words of the mark that began it; the key where there is no such stretch."""
        one = self.stretches.get(str(key))
        if one is None:
            return "the session" if key is None else key
        label = f" “{one.label}”" if one.label else ""
        return f"{one.key} · {one.backend}{label}"


def statistic(stretch: Stretch, metric: str) -> Statistic | None:
    """The spread of one metric; None where it was not measured."""
    return next((one for one in stretch.statistics if one.metric == metric), None)
