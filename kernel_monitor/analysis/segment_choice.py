"""Which segment a loader's advice is for (`standing`), and which one stands for a session (`representative`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .loops import beside, of_segments
from .switches import REPLAYS, switches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .results import Segment
    from .switches import Event

ENOUGH_STEPS = 30  # a segment with so many stands for its session; one that has just begun does not
FEWEST_STEPS = 20
"""A segment of fewer is not advised from while there is a longer one of the same engine, knobs and loop."""


def in_use(events: Sequence[Event]) -> dict[str, str]:
    """By loader that was switched, the engine that delivers now, with a step or without one yet; no replay."""
    done = switches(list(events))
    return {str(event["loader"]): str(event["target"]) for event in done if event["target"] != REPLAYS}


def standing(segments: Sequence[Segment], used: Mapping[str, str]) -> dict[str, Segment]:
    """By loader, the segment that its advice is for: the newest of what is in use, replayed only if there is no other.

    Where that has few steps yet, it is an earlier one of the same engine and knobs, if nothing but switches lies
    between: an engine that was tried and left again (*Diagnose* does so) changes nothing. `segments` are in the order
    of time; `used` is `in_use`, for other loaders the newest segment's engine.
    """
    found: dict[str, Segment] = {}
    for segment in segments:
        known = found.get(segment.loader)
        if known is None or not segment.synthetic or known.synthetic:
            found[segment.loader] = segment
    for loader, last in list(found.items()):
        wanted = used.get(loader, last.backend), last.knobs
        for segment in reversed([segment for segment in segments if segment.loader == loader]):
            if (segment.backend, segment.knobs) == wanted and segment.steps >= FEWEST_STEPS:
                found[loader] = segment
                break
            if segment.began_by != "switch":
                break  # what lies before is another loop
    return found


def withheld(segment: Segment, stands: Segment, used: str | None) -> str | None:
    """Why nothing is advised on a segment, as a sentence; None where something is.

    `stands` is the segment that its loader's advice is for, `used` the engine in use (None: never switched).
    """
    if segment is stands and used in (None, segment.backend):
        return None
    if segment is stands or used not in (None, stands.backend):
        return f"{used} is in use now and has hardly delivered yet: let it run on."
    if stands.steps < FEWEST_STEPS:
        return f"{stands.key} ({stands.backend}, {stands.steps:,} steps) came after it: let it run on."
    return f"Advice is on {stands.key}, as it is in use now ({stands.backend}, {stands.steps:,} steps)."


def representative(segments: Sequence[Segment], used: Mapping[str, str]) -> Segment | None:
    """The segment that stands for a session; None where there is none.

    The newest of real batches with enough steps, else the one with the most; of loops that stand beside no other. A
    segment of an engine that was left again gives way to the one that its loader's advice is for.
    """
    aside = beside(of_segments(segments))
    own = [segment for segment in segments if segment.loader not in aside]
    real = [segment for segment in own if not segment.synthetic] or own
    enough = [segment for segment in real if segment.steps >= ENOUGH_STEPS]
    if not enough:
        return max(real, key=lambda segment: segment.steps, default=None)
    last = enough[-1]
    stands = standing(segments, used)[last.loader]
    return stands if stands.steps >= (FEWEST_STEPS if stands.start <= last.start else ENOUGH_STEPS) else last
