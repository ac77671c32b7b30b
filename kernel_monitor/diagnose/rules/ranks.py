"""Several ranks of one training: one whose data come late holds up all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ..loops import beside, of_stretches
from ..model import Evidence
from .base import NO_DELIVERY, Parameter, Rule, plainly, too_few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store import Snapshot
    from ..model import Finding, Stretch
    from .base import Asked, Session


class Rank(NamedTuple):
    """What one rank's newest stretch says: ms per step and of it the wait for data, and of how many steps."""

    number: int
    step: float
    wait: float
    steps: int


def imbalance(session: Session, asked: Asked) -> Finding:
    """Ranks that wait for data for different times."""
    from ..stretches import stretches

    own = session.frames.snapshot
    world = own.facts.get("world_size")
    if not session.others:
        more = f" of the {world} ranks" if world and int(world) > 1 else ""
        return asked.abstained(f"the other ranks' sessions: this is one{more or ', and no other was given'}")
    if not session.stretches:
        return asked.abstained(NO_DELIVERY)
    ranks = [_rank(own, session.stretches, 0)]
    ranks += [_rank(other, stretches(other), place) for place, other in enumerate(session.others, start=1)]
    known = [one for one in ranks if one is not None and one.steps >= asked["least"]]
    if len(known) < 2:
        return asked.abstained(too_few(f"ranks with {asked['least']:g} steps", len(known), 2))
    mean = sum(one.step for one in known) / len(known)
    slow, fast = max(known, key=lambda one: one.wait), min(known, key=lambda one: one.wait)
    late, early = max(known, key=lambda one: one.step), min(known, key=lambda one: one.step)
    waits, steps = (slow.wait - fast.wait) / mean, (late.step - early.step) / mean
    evidence = (
        Evidence(
            text=(
                f"Wait for data per step: {slow.wait:,.1f} ms on rank {slow.number}, {fast.wait:,.1f} ms on rank "
                f"{fast.number}, of a mean step of {mean:,.1f} ms ({len(known)} ranks)"
            ),
            value=100 * waits,
            threshold=100 * asked["difference"],
            unit="% of the mean step",
        ),
        Evidence(
            text=(
                f"Whole step: {late.step:,.1f} ms on rank {late.number}, {early.step:,.1f} ms on rank {early.number}"
            ),
            value=100 * steps,
            threshold=100 * asked["difference"],
            unit="% of the mean step",
        ),
    )
    samples = sum(one.steps for one in known)
    if max(waits, steps) > asked["difference"]:
        rank = slow.number if waits >= steps else late.number
        advised = plainly(
            f"Every step of synchronous training lasts as long as its slowest rank: look at rank {rank} first "
            "(its machine's cores, its storage, its share of the data)."
        )
        return asked.fired(advised, *evidence, samples=samples, times=len(known))
    return asked.quiet(*evidence, samples=samples)


def _rank(snapshot: Snapshot, made: Sequence[Stretch], place: int) -> Rank | None:
    """Of the newest stretch of the loader that delivered most steps, an evaluation's not counted."""
    aside = beside(of_stretches(made))
    real = [one for one in made if not one.synthetic and one.steps and math.isfinite(one.wait)]
    real = [one for one in real if one.loader not in aside]
    if not real:
        return None
    steps: dict[str, int] = {}
    for one in real:
        steps[one.loader] = steps.get(one.loader, 0) + one.steps
    newest = next(one for one in reversed(real) if one.loader == max(steps, key=lambda key: steps[key]))
    told = snapshot.facts.get("rank")
    return Rank(place if told is None else int(told), newest.step, newest.wait, newest.steps)


RULES = (
    Rule(
        "rank-imbalance",
        "One rank waits longer than another",
        {
            "difference": Parameter(0.1, "of the mean step: by more than this waits or steps of two ranks differ"),
            "least": Parameter(20, "steps that each rank must have"),
        },
        "Compares the newest stretches of all ranks' sessions. Abstains on one rank's alone.",
        "This project's.",
        of_session=imbalance,
    ),
)
