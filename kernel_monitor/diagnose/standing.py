"""Which stretch a loader's advice is for, and which one stands for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loops import beside, of_stretches
from .switches import REPLAYS, switches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .model import Stretch
    from .switches import Event

ENOUGH_STEPS = 30
"""A stretch with so many stands for its session; one that has just begun does not."""
FEWEST_STEPS = 20
"""A stretch of fewer is not advised from while there is a longer one of the same engine, knobs and loop."""


def newest(parts: Sequence[Stretch]) -> dict[str, Stretch]:
    """Each loader's last stretch, replayed ones only where there is no other: what is in use."""
    found: dict[str, Stretch] = {}
    for one in parts:
        known = found.get(one.loader)
        if known is None or not one.synthetic or known.synthetic:
            found[one.loader] = one
    return found


def in_use(events: Sequence[Event]) -> dict[str, str]:
    """By loader that was switched, the engine that delivers now, with a step or without one yet; no replay."""
    return {str(one["loader"]): str(one["target"]) for one in switches(list(events)) if one["target"] != REPLAYS}


def standing(parts: Sequence[Stretch], used: Mapping[str, str]) -> dict[str, Stretch]:
    """By loader, the stretch that its advice is for: the newest of what is in use.

    Where that has few steps yet, it is an earlier one of the same engine and knobs, if nothing but switches lies
    between: an engine that was tried and left again (*Diagnose* does so) changes nothing.

    Args:
        parts: stretches of all loaders, in the order of time.
        used: `in_use`; of other loaders it is the newest stretch's engine.
    """
    found = newest(parts)
    for loader, last in list(found.items()):
        wanted = used.get(loader, last.backend), last.knobs
        own = [one for one in parts if one.loader == loader]
        for later, one in zip(reversed(own), [None, *reversed(own)], strict=False):
            if one is not None and one.began_by != "switch":
                break  # it is another loop before
            if (later.backend, later.knobs) == wanted and later.steps >= FEWEST_STEPS:
                found[loader] = later
                break
    return found


def withheld(part: Stretch, stands: Stretch, used: str | None) -> str | None:
    """Why nothing is advised on a stretch, as a sentence; None where something is.

    Args:
        part: the stretch.
        stands: that its loader's advice is for.
        used: the engine in use; None where the loader was never switched.
    """
    if part is stands and used in (None, part.backend):
        return None
    if part is stands or used not in (None, stands.backend):
        return f"{used} is in use now and has hardly delivered yet: let it run on."
    if stands.steps < FEWEST_STEPS:
        return f"{stands.key} ({stands.backend}, {stands.steps:,} steps) came after it: let it run on."
    return f"Advice is on {stands.key}, as it is in use now ({stands.backend}, {stands.steps:,} steps)."


def representative(parts: Sequence[Stretch], used: Mapping[str, str]) -> Stretch | None:
    """The stretch that stands for a session; None where there is none.

    The newest of real batches with enough steps, else the one with the most; of loops that stand beside no other. A
    stretch of an engine that was left again gives way to the one that its loader's advice is for.
    """
    aside = beside(of_stretches(parts))
    own = [one for one in parts if one.loader not in aside]
    real = [one for one in own if not one.synthetic] or own
    enough = [one for one in real if one.steps >= ENOUGH_STEPS]
    if not enough:
        return max(real, key=lambda one: one.steps, default=None)
    last = enough[-1]
    stands = standing(parts, used)[last.loader]
    return stands if stands.steps >= (FEWEST_STEPS if stands.start <= last.start else ENOUGH_STEPS) else last
