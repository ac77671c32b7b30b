"""The types that rules share: `Rule`, the `Session` and `Check` that they get, and the error for a missing signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...store import Snapshot
from ..advice import Decision
from ..frames import Frames, Places, Steps
from ..results import Advice, Evidence, Finding, Segment

NO_DELIVERY = "deliveries: no loader of this kernel delivered a batch"


class SignalMissing(Exception):
    """The exception of a rule that abstains: the signal that it lacks, and how many values it has."""

    def __init__(self, signal: str, samples: int = 0) -> None:
        super().__init__(signal)
        self.samples = samples


def require(what: str, count: int, least: float, samples: int = 0) -> None:
    """Abstain from fewer than `least` values."""
    if count < least:
        raise SignalMissing(f"{what}: {count:,} of the {least:,.0f} that it takes", samples=samples)


@dataclass(frozen=True)
class Session:
    """The data of a session that rules read."""

    snapshot: Snapshot  # the session
    frames: Frames  # its rows and steps
    segments: Sequence[Segment]  # of all loaders, in the order of time
    others: Sequence[Snapshot] = ()  # the sessions of the other ranks of the same training
    # by the segments' keys, what their advice is made from
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def decision(self, segment: Segment) -> Decision:
        """Return the decision on the segment's loader."""
        return self.decisions.get(segment.key) or Decision(segment)

    def rows(self, segment: Segment) -> Places:
        """Return the rows in which the segment's loader was delivering."""
        return self.frames.delivery_rows(segment.loader, segment.start, segment.end)

    def steps(self, segment: Segment) -> Steps:
        """Return the segment's steps, those included that do not count."""
        return self.frames.steps(segment.loader, segment.start, segment.end)

    def require_gpu(self, what: str = "utilisation") -> None:
        """Abstain where the `utilisation` (or the `memory`) of no GPU was measured."""
        if not bool(np.isfinite(self.frames.parts("gpu", what)).any()):
            raise SignalMissing(f"GPU {what}: {self.snapshot.schema.gpu_reason or 'no value was measured'}")


@dataclass(frozen=True)
class Parameter:
    """A threshold of a rule: its default and its meaning."""

    default: float
    meaning: str


@dataclass(frozen=True)
class Rule:
    """A rule: its thresholds, its texts and the function that checks it."""

    id: str  # id, title: its name, and what people read
    title: str
    parameters: Mapping[str, Parameter]  # the thresholds
    explanation: str  # when it fires, and what it abstains from
    source: str  # where it comes from, and what was changed
    # checked for every segment; None: `of_session` is checked
    of_segment: Callable[[Session, Check, Segment], Finding] | None = None
    of_session: Callable[[Session, Check], Finding] | None = None  # checked once
    replayed: bool = False  # it is checked for segments of replayed batches, too
    with_verdict: bool = False  # what it finds stands with the verdict, on pages while the loop runs

    @property
    def defaults(self) -> dict[str, float]:
        return {name: parameter.default for name, parameter in self.parameters.items()}


@dataclass(frozen=True)
class Check:
    """A rule with its thresholds, for one segment or (None) the session; makes the findings."""

    rule: Rule
    thresholds: Mapping[str, float]
    segment: Segment | None = None

    def __getitem__(self, name: str) -> float:
        return self.thresholds[name]

    def evidence(
        self, text: str, value: float = math.nan, threshold: float = math.nan, unit: str = "", share: float = math.nan
    ) -> Evidence:
        """Return evidence that is about the whole segment."""
        start, end = (math.nan, math.nan) if self.segment is None else (self.segment.start, self.segment.end)
        return Evidence(text, value, threshold, unit, share, start, end)

    def finding(
        self,
        fires: bool,
        advised: Sequence[Advice],
        *evidence: Evidence,
        samples: int = 0,
        times: int = 1,
        severity: Literal["warning", "critical"] = "warning",
    ) -> Finding:
        """Return the finding: fired, with the advice, or quiet."""
        found = Finding(
            rule=self.rule.id,
            title=self.rule.title,
            state="quiet",
            segment=None if self.segment is None else self.segment.key,
            samples=samples,
            evidence=evidence,
            parameters=dict(self.thresholds),
        )
        if not fires:
            return found
        return replace(found, state="fired", severity=severity, times=times, advised=tuple(advised))

    def quiet(self, *evidence: Evidence, samples: int = 0) -> Finding:
        return self.finding(False, (), *evidence, samples=samples)

    def abstained(self, missing: SignalMissing) -> Finding:
        return replace(self.quiet(samples=missing.samples), state="abstained", missing=(str(missing),))


def plain_advice(text: str, segment: Segment | None = None) -> tuple[Advice, ...]:
    """Return advice that follows from the rule alone, so that no other advice can say the opposite."""
    return (Advice(text, segment=None if segment is None else segment.key),)


def windows(what: str, count: int, size: float, least: float) -> list[slice]:
    """Return windows of `size` samples, and a last one of at least `least`; abstain where there is none."""
    wide = max(1, round(size))
    found = [slice(start, start + wide) for start in range(0, count - wide + 1, wide)]
    rest = count - wide * len(found)
    if rest >= max(1, least):
        found.append(slice(count - rest, count))
    if not found:
        require(what, count, max(1, least))
    return found


def span(times: npt.NDArray[np.float64]) -> dict[str, float]:
    """Start and end for `Evidence`: the first of these times and the last."""
    return {"start": float(times[0]), "end": float(times[-1])} if len(times) else {}
