"""The stretches before and after a switch of loaders, without the change-over between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .measured import Measured, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Table

LONGEST_S = 60.0
"""At most this much time on each side is compared."""
SHORTEST_S = 2.0
"""Less than this on one side is not compared."""
FEWEST_STEPS = 3
"""Frames with a finished step that each side must have."""
REPLAYS = "synthetic"
"""The backend that replays batches: its figures say how fast the loop can be, not how fast anything loads."""
IN_FLIGHT = 4
"""Batches that an engine has ready when it takes over, and which say nothing about its speed."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What one switch changed.

    Attributes:
        switch: its event.
        before, after: the two stretches.
        reason: why they cannot be compared (yet); None when they can.
    """

    switch: Event
    before: Measured
    after: Measured
    reason: str | None


def switches(events: Sequence[Event]) -> list[Event]:
    """The switches that took place, in the order of their first batches."""
    return sorted((event for event in events if event["kind"] == "switch"), key=first)


def asked(event: Event) -> float:
    """When the switch was asked for: from then on the incoming engine's start disturbs the outgoing one."""
    return float(event["asked"] if "asked" in event else event["time"])


def first(event: Event) -> float:
    """When the incoming engine's first batch was delivered."""
    return float(event["first"] if "first" in event else event["time"])


def compare(table: Table, events: Sequence[Event], which: int = -1) -> Comparison | None:
    """Compare both sides of a switch.

    Before: from the switch before it (at most the last minute) to the request. After: from the end of the change-over
    to the next request (at most a minute). The change-over is the time from the request to the first batch and the
    batches that the incoming engine had made in advance.

    Args:
        table: rows, oldest first (`store.Rows` or `store.Snapshot`).
        events: the store's events.
        which: index into `switches(events)`.

    Returns:
        None when there is no switch.
    """
    done = switches(events)
    if not done:
        return None
    switch = done[which]
    loader = str(switch["loader"])
    place = done.index(switch)
    begin, ready = asked(switch), first(switch)
    previous = settled(table, done[place - 1]) if place > 0 else 0.0
    # The machine is shared: another loader's request ends the stretch as well.
    requests = [float(event["time"]) for event in events if event["kind"] == "switch-asked"]
    requests += [asked(event) for event in done[place + 1 :]]
    start = settled(table, switch)
    until = min([moment for moment in requests if moment > ready], default=float("inf"))
    before = measure(table, loader, max(previous, begin - LONGEST_S), begin)
    after = measure(table, loader, start, min(start + LONGEST_S, until))
    return Comparison(switch, before, after, _reason(before, after, open_end=until == float("inf")))


def settled(table: Table, switch: Event) -> float:
    """When the batches that the incoming engine had made in advance were used up, in seconds of the session."""
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
