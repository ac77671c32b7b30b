"""Which loops are secondary: a run that trains also evaluates, and its verdict is that of the training (`beside`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..steps.measured_step import NO_GRADIENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.steps import StepTable
    from .results import Segment

TOGETHER_S = 0.5  # loops that have no more time in common followed each other: the times of steps are rounded


class Loop(NamedTuple):
    """One loader's steps: first beginning and last end (session s), s that they took; most had no gradients."""

    loader: str
    start: float
    end: float
    seconds: float
    evaluates: bool


def beside(loops: Iterable[Loop]) -> frozenset[str]:
    """Ids of the loaders whose loops stand beside another one; never all of them.

    An evaluation stands beside any training. Of other loops that took turns (each began before the other ended) those
    stand beside that took less time: an evaluation whose gradients are turned off after its batch has come is such.
    """
    known = [loop for loop in loops if loop.seconds > 0]
    training = [loop for loop in known if not loop.evaluates] or known
    found = {loop.loader for loop in known if loop not in training}
    for loop in training:
        if any(
            other.seconds > loop.seconds and min(loop.end, other.end) - max(loop.start, other.start) > TOGETHER_S
            for other in training
        ):
            found.add(loop.loader)
    return frozenset(found)


def of_segments(segments: Sequence[Segment]) -> list[Loop]:
    """The loops of a session."""
    own: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.steps and math.isfinite(segment.step):
            own.setdefault(segment.loader, []).append(segment)
    return [
        Loop(
            loader,
            start=min(segment.start for segment in found),
            end=max(segment.end for segment in found),
            seconds=sum(segment.steps * segment.step for segment in found) / 1e3,
            evaluates=all(segment.evaluates for segment in found),
        )
        for loader, found in own.items()
    ]


def of_steps(steps: StepTable, start: float, end: float) -> list[Loop]:
    """The loops of a part of a session: of the steps that ended in `(start, end]`."""
    found = []
    for loader in steps.loaders:
        rows = steps.of(loader, start, end)
        if len(rows):
            began, ended = float(rows["end"][0] - rows["step"][0]), float(rows["end"][-1])
            evaluates = bool(2 * (rows["flags"] & NO_GRADIENTS != 0).sum() > len(rows))
            found.append(Loop(loader, began, ended, float(rows["step"].sum()), evaluates))
    return found
