"""What rules find of the loops under way that must be seen with their verdicts: warnings for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..store import Rows, Snapshot, StepTable
from .frames import Frames
from .rules import evaluate, warnings
from .segments import segments
from .verdict import THRESHOLDS, advised, judge

State = Mapping[str, Any]


def change_warnings(
    rows: Rows, steps: StepTable, events: Sequence[State], states: Sequence[State], loader: str
) -> tuple[str, ...]:
    """What the newest change of a loader (its id) did to the training, a sentence each.

    Args:
        rows, steps: from a minute before the change on; what lies before does not matter.
        events: of the session, in the order of time.
        states: of the loaders.
    """
    if not len(rows.time):
        return ()
    begin = float(rows.time[0])
    turned = [event for event in events if event["kind"] == "knobs" and event.get("loader") == loader]
    # What lies before the rows costs time and says nothing, but for the knobs as they were then.
    earlier = [event for event in turned if event["time"] < begin][-1:]
    known = [dict(event) for event in (*earlier, *(event for event in events if event["time"] >= begin))]
    snapshot = _snapshot(rows, steps, known, states)
    state = next((state for state in states if str(state.get("id")) == loader), {})
    with np.errstate(all="ignore"):
        frames = Frames(snapshot)
        parts = [segment for segment in segments(snapshot, frames) if segment.loader == loader]
        if len(parts) < 2:
            return ()
        _, decision = advised(frames, parts[-1], judge(frames, parts[-1], state, THRESHOLDS, ()), state)
        found = evaluate(snapshot, parts, frames=frames, decisions={parts[-1].key: decision}, only=("host-contention",))
    return warnings([finding for finding in found if finding.segment is not None], parts[-1].key)


def epoch_warnings(rows: Rows, states: Sequence[State]) -> tuple[str, ...]:
    """What is wrong with epochs that came to their ends, by the loaders' own counts.

    `states` are with the counts of the epochs before the newest, as `epochs`.
    """
    snapshot = _snapshot(rows, StepTable(), [], states)
    return warnings(evaluate(snapshot, (), frames=Frames(snapshot), only=("empty-epoch",)), None)


def _snapshot(rows: Rows, steps: StepTable, events: list[dict[str, Any]], states: Sequence[State]) -> Snapshot:
    told = [dict(state) for state in states]
    return Snapshot(rows.schema, rows.seq, rows.time, rows.values, events, told, {}, steps)
