"""What has been measured already of other engines, by *Diagnose* or by a switch: better than anything reckoned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .results import Gain
from .step_times import of_steps
from .switches import IN_FLIGHT, LONGEST_S, REPLAYS, asked, first

if TYPE_CHECKING:
    from ..store.steps import StepTable
    from .results import Segment

ANOTHER_LOOP = ("knobs", "mark")  # events after which the loop is not the one that was measured
FEWEST_STEPS = 20  # each side of a switch must have so many
BLOCKS, BLOCK_STEPS = 20, 5
"""The spread of a mean step is taken over so many runs of neighbouring steps, of so many steps at least."""
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Pace:
    """The mean step of an engine on one side of a switch, s, its 95 % interval, and of how many steps."""

    backend: str
    step: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True)
class Pair:
    """Both sides of a switch of one loader, at most a minute each; `asked` and `first` in session s."""

    loader: str
    asked: float
    first: float
    before: Pace
    after: Pace


def pairs(steps: StepTable, events: Sequence[Event]) -> tuple[Pair, ...]:
    """The switches of a session between real engines that have enough steps on both sides, in the order of time."""
    made = (pair(steps, events, event) for event in events if event.get("kind") == "switch")
    return tuple(one for one in made if one is not None)


def pair(steps: StepTable, events: Sequence[Event], switch: Event) -> Pair | None:
    """What a switch changed; None where a side was replayed or has too few steps.

    A side ends where anything is changed: a mark, a knob, a request for any loader (the machine is shared). The batches
    that the incoming engine had made in advance do not count.

    Args:
        steps: of the minute before it was asked for, and since.
        events: of the session.
        switch: one of them.
    """
    if REPLAYS in (switch["source"], switch["target"]):
        return None
    loader, begin, ready = str(switch["loader"]), asked(dict(switch)), first(dict(switch))
    since, until = -math.inf, math.inf
    for event in events:
        if event.get("kind") not in ("switch", "switch-asked", *ANOTHER_LOOP):
            continue
        begins = first(dict(event))
        if event["kind"] != "switch-asked" and begins < begin:
            since = max(since, begins)
        ends = asked(dict(event))
        if ends > ready:
            until = min(until, ends)
    ahead = IN_FLIGHT if since > begin - LONGEST_S else 0
    before = _pace(str(switch["source"]), steps.of(loader, max(since, begin - LONGEST_S), begin)[ahead:])
    after = _pace(str(switch["target"]), steps.of(loader, ready, min(ready + LONGEST_S, until))[IN_FLIGHT:])
    return None if before is None or after is None else Pair(loader, begin, ready, before, after)


def _pace(backend: str, rows: Any) -> Pace | None:
    step = of_steps(rows).step
    count = min(BLOCKS, len(step) // BLOCK_STEPS)
    if len(step) < FEWEST_STEPS:
        return None
    mean = float(step.mean())
    means = [float(part.mean()) for part in np.array_split(step, count)]
    # Student's t for 95 %, as in `timings.shares`.
    half = (1.96 + 3.27 / (count - 1)) * float(np.std(means, ddof=1)) / math.sqrt(count)
    return Pace(backend, mean, max(mean - half, 0.1 * mean), mean + half, len(step))


def tried(
    events: Sequence[Event], segment: Segment, switched: Sequence[Pair] = (), until: float | None = None
) -> tuple[Gain, ...]:
    """What other engines would save of this segment's steps, of each by the newest measure in its loop.

    Args:
        events: the session's, in the order of time.
        segment: whose engine the others are compared with.
        switched: of the session.
        until: session s, the segment's end if left out; what came after it is not known yet.

    Returns:
        Gains with `measured`; none where the loop was changed since they were measured, or the segment's own engine
        was not. `low` and `high` are the quartiles' extremes (*Diagnose*) or the mean steps' 95 % intervals (a switch).
    """
    until = segment.end if until is None else until
    known = [
        event
        for event in events
        if event.get("loader") in (None, segment.loader) and float(event.get("time", math.inf)) <= until
    ]
    changed = max((float(event["time"]) for event in known if event.get("kind") in ANOTHER_LOOP), default=-math.inf)
    newest = next((event for event in reversed(known) if event.get("kind") == "diagnosis"), None)
    found = {} if newest is None else {one.action: one for one in _diagnosed(newest, segment, changed)}
    diagnosed_at = -math.inf if newest is None else float(newest["time"])
    for pair in switched:
        if pair.loader != segment.loader or pair.asked <= changed or pair.first > until:
            continue
        sides = {pair.before.backend: pair.before, pair.after.backend: pair.after}
        own = sides.pop(segment.backend, None)
        for name, other in sides.items():
            if own is not None and (name not in found or pair.first > diagnosed_at):
                found[name] = _switched(own, other)
    return tuple(found.values())


def _diagnosed(event: Event, segment: Segment, changed: float) -> list[Gain]:
    result = event.get("result") or {}
    began = result.get("began")
    if changed > (float(event["time"]) if began is None else float(began)):
        return []
    runs = {str(run.get("backend")): run for run in result.get("runs") or () if _counts(run)}
    own = runs.pop(segment.backend, None)
    return [] if own is None else [_gain(own, run) for name, run in runs.items() if name != REPLAYS]


def _counts(run: Mapping[str, Any]) -> bool:
    figures = [run.get(name) for name in ("step", "rate_low", "rate_high", "steps")]
    return run.get("problem") is None and all(isinstance(one, int | float) and one > 0 for one in figures)


def _gain(own: Mapping[str, Any], other: Mapping[str, Any]) -> Gain:
    return Gain(
        action=str(other["backend"]),
        low=1 - own["rate_high"] / other["rate_low"],
        high=1 - own["rate_low"] / other["rate_high"],
        measured=1 - other["step"] / own["step"],
        basis=(
            f"by Diagnose: {own['step']:,.1f} → {other['step']:,.1f} ms per step "
            f"({own['steps']:,} → {other['steps']:,} steps)"
        ),
        by="Diagnose",
    )


def _switched(own: Pace, other: Pace) -> Gain:
    return Gain(
        action=other.backend,
        low=1 - other.high / own.low,
        high=1 - other.low / own.high,
        measured=1 - other.step / own.step,
        basis=(
            f"by a switch: {own.backend} {1e3 * own.step:,.1f} ms per step, {other.backend} {1e3 * other.step:,.1f} ms "
            f"({own.steps:,} and {other.steps:,} steps)"
        ),
        by="switch",
    )
