"""Which loops stand beside another: a run that trains also evaluates, and is asked about its training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..steps.records import NO_GRADIENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..store.steps import StepTable
    from .model import Stretch

TOGETHER_S = 0.5
"""Loops that have no more in common followed each other: the times of steps are rounded."""


class Loop(NamedTuple):
    """What was done with one loader.

    Attributes:
        loader: its id.
        start, end: session s, of its first step and its last.
        seconds: that all its steps took.
        evaluates: most of its steps were without gradients.
    """

    loader: str
    start: float
    end: float
    seconds: float
    evaluates: bool


def beside(loops: Iterable[Loop]) -> frozenset[str]:
    """Ids of the loaders whose loops are not what the session is about; never all of them.

    An evaluation stands beside any training. Of other loops that took turns (each began before the other ended) those
    stand beside that took less time: an evaluation whose gradients are turned off after its batch has come is such.
    """
    known = [one for one in loops if one.seconds > 0]
    training = [one for one in known if not one.evaluates] or known
    found = {one.loader for one in known} - {one.loader for one in training}
    for one in training:
        if any(
            other.seconds > one.seconds and min(one.end, other.end) - max(one.start, other.start) > TOGETHER_S
            for other in training
        ):
            found.add(one.loader)
    return frozenset(found)


def of_stretches(parts: Sequence[Stretch]) -> list[Loop]:
    """The loops of a session."""
    own: dict[str, list[Stretch]] = {}
    for part in parts:
        if part.steps and math.isfinite(part.step):
            own.setdefault(part.loader, []).append(part)
    return [
        Loop(
            loader,
            min(one.start for one in found),
            max(one.end for one in found),
            sum(one.steps * one.step for one in found) / 1e3,
            all(one.evaluates for one in found),
        )
        for loader, found in own.items()
    ]


def of_steps(steps: StepTable, start: float, end: float) -> list[Loop]:
    """The loops of a part of a session: of the steps that ended in `(start, end]`."""
    found = []
    for loader in steps.loaders:
        rows = steps.of(loader, start, end)
        if len(rows):
            began = float(rows["end"][0] - rows["step"][0])
            without = rows["flags"] & NO_GRADIENTS != 0
            found.append(
                Loop(
                    loader,
                    began,
                    float(rows["end"][-1]),
                    float(rows["step"].sum()),
                    bool(2 * without.sum() > len(rows)),
                )
            )
    return found
