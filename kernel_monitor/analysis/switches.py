"""The switches of a session: which took place, when, and from when on the incoming engine shows its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..store import Rows
from .frames import Floats

REPLAYS = "synthetic"  # the engine that replays batches: its figures are of the loop alone, not of loading
LONGEST_S = 60.0  # of each side of a change, at most this much is looked at for what it did to the training besides
ROUNDING_S = 1e-6  # a step that ends so soon after the first batch came is of the engine before
IN_FLIGHT = 4  # batches that an engine has ready when it takes over, which do not show its speed
LONGEST_CHANGE_OVER_S = 5.0  # after its first batch an engine is measured from here on, however long its steps are

Event = Mapping[str, Any]


def switches(events: Sequence[Event]) -> list[Event]:
    """The switches that took place, in the order of their first batches."""
    return sorted((event for event in events if event["kind"] == "switch"), key=first)


def asked(event: Event) -> float:
    """When the switch was asked for: from then on the incoming engine's start disturbs the outgoing one."""
    return float(event["asked"] if "asked" in event else event["time"])


def first(event: Event) -> float:
    """When a change took place: of a switch, when the incoming engine's first batch was delivered."""
    return float(event["time"] if event.get("first") is None else event["first"])


def settled(switch: Event, ends: Floats, rows: Rows | None = None) -> float:
    """When the batches that the incoming engine had made in advance were used up, session s.

    `ends` are the ends of its loader's steps (session s, ascending); where none were kept, the means of `rows`.
    """
    begin = first(switch)
    latest = begin + LONGEST_CHANGE_OVER_S
    if rows is None:
        made = ends[int(np.searchsorted(ends, begin + ROUNDING_S, side="right")) :][:IN_FLIGHT]
        return min(float(made[-1]), latest) if len(made) == IN_FLIGHT else latest
    column = rows.schema.columns.get(f"loader/{switch['loader']}/step")
    low, high = np.searchsorted(rows.time, [begin, begin + 10.0], side="right")
    steps = rows.values[low:high, column] if column is not None else np.empty(0, dtype=np.float32)
    steps = steps[np.isfinite(steps)]
    step_s = float(np.median(steps)) / 1e3 if len(steps) else 0.25
    return min(begin + IN_FLIGHT * step_s, latest)
