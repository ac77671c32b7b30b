"""The switches of a session, and both sides of one, without the change-over between them (`compare`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .aggregates import Measured, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import StepTable
    from .frames import Table

LONGEST_S = 60.0  # at most this much time on each side is compared
SHORTEST_S = 2.0  # less than this on one side is not compared
FEWEST_STEPS = 3  # rows with a finished step that each side must have
REPLAYS = "synthetic"  # the engine that replays batches: its figures are of the loop alone, not of loading
IN_FLIGHT = 4  # batches that an engine has ready when it takes over, which do not show its speed

Event = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What one switch changed."""

    switch: Event  # its event
    before: Measured  # before, after: the two sides
    after: Measured
    reason: str | None  # why they cannot be compared (yet); None when they can


def switches(events: Sequence[Event]) -> list[Event]:
    """The switches that took place, in the order of their first batches."""
    return sorted((event for event in events if event["kind"] == "switch"), key=first)


def asked(event: Any) -> float:
    """When the switch was asked for: from then on the incoming engine's start disturbs the outgoing one."""
    return float(event["asked"] if "asked" in event else event["time"])


def first(event: Any) -> float:
    """When a change took place: of a switch, when the incoming engine's first batch was delivered."""
    return float(event["time"] if event.get("first") is None else event["first"])


def compare(
    table: Table, events: Sequence[Event], which: int = -1, steps: StepTable | None = None
) -> Comparison | None:
    """Compare both sides of a switch, `switches(events)[which]`; None when there is no switch.

    Before: from the switch before it (at most the last minute) to the request. After: from the end of the change-over
    to the next request (at most a minute). The change-over is the time from the request to the first batch and the
    batches that the incoming engine had made in advance. A snapshot brings its own `steps`.
    """
    done = switches(events)
    if not done:
        return None
    switch = done[which]
    loader = str(switch["loader"])
    place = done.index(switch)
    begin, ready = asked(switch), first(switch)
    previous = settled(table, done[place - 1]) if place > 0 else 0.0
    # The machine is shared: another loader's request ends the side as well.
    requests = [float(event["time"]) for event in events if event["kind"] == "switch-asked"]
    requests += [asked(event) for event in done[place + 1 :]]
    start = settled(table, switch)
    until = min([moment for moment in requests if moment > ready], default=float("inf"))
    before = measure(table, loader, max(previous, begin - LONGEST_S), begin, steps)
    after = measure(table, loader, start, min(start + LONGEST_S, until), steps)
    return Comparison(switch, before, after, _reason(before, after, open_end=until == float("inf")))


def settled(table: Table, switch: Event) -> float:
    """When the batches that the incoming engine had made in advance were used up, session s."""
    begin = first(switch)
    column = table.schema.columns.get(f"loader/{switch['loader']}/step")
    low, high = np.searchsorted(table.time, [begin, begin + 10.0], side="right")
    steps = table.values[low:high, column] if column is not None else np.empty(0, dtype=np.float32)
    steps = steps[np.isfinite(steps)]
    step_s = float(np.median(steps)) / 1e3 if len(steps) else 0.25
    return begin + min(IN_FLIGHT * step_s, 5.0)


def _reason(before: Measured, after: Measured, *, open_end: bool) -> str | None:
    if _short(before):
        return f"too little was measured before the switch to compare ({_amount(before)})"
    if not _short(after):
        return None
    if open_end:
        return "measuring…"
    return f"too little was measured after the switch to compare ({_amount(after)})"


def _short(side: Measured) -> bool:
    return side.seconds < SHORTEST_S or len(side.wait) < FEWEST_STEPS


def _amount(side: Measured) -> str:
    return f"{side.samples:,.0f} samples in {side.seconds:.1f} s"
