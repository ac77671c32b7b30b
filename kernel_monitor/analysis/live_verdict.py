"""The verdict on the segment under way and its warnings: cheap enough for every two seconds of a training loop."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..store import Rows, Snapshot
from ..store.snapshot import StepTable
from .advice import offer
from .frames import IDLE_S, Frames
from .gains import SwitchPair, measured_gains, switch_pairs
from .loops import secondary_loaders, secondary_reason
from .results import Segment, plain
from .rules import evaluate, warnings
from .segments import WATCHED, Part, change_time, figures, known_knobs, segments, settle_time
from .verdict import KINDS, THRESHOLDS, judge, past, with_advice

# ---- The verdict on the segment under way (`live_verdict`): cheap enough for every two seconds of a training loop.

LONGEST_S = 60.0  # only so much of the newest past is judged: the verdict follows the loop
MOST_STEPS = 2000
CHANGES = ("switch", "knobs", "mark")
_HYSTERESIS = 0.8  # the last verdict is kept until its share is below the threshold by this factor


def live_verdict(
    rows: Rows,
    steps: StepTable,
    events: Sequence[Mapping[str, Any]],
    loaders: Sequence[Mapping[str, Any]],
    last: Mapping[str, Any] | None = None,
    *,
    loader: str | None = None,
    switched: Sequence[SwitchPair] | None = None,
    secondary_ids: Collection[str] | None = None,
    over: bool = False,
) -> dict[str, Any] | None:
    """Return the verdict on the loop under way, as JSON of `Verdict` with `loader` (its loader's id) and `over`.

    It is on the loader that delivered last; where that stands beside another loop, on the last one that does not. What
    is said rests on the last minute; where the segment is longer, the sentence names that window. `offer` is the switch
    that may be offered, as JSON of `advice.Offer`, or None. A loop that stands beside another has neither advice nor
    offer. None where no loader has delivered in the last few seconds, or `loader` has not in these rows.

    Args:
        rows, steps: of the last minute at least.
        events, loaders: of the session; the loaders' states.
        last: what was returned last time: its kind is kept while the loop is near a threshold.
        loader: the id of the one to judge, whenever it delivered last.
        switched: what switches of the session measured; those of these steps if left out.
        secondary_ids: ids of the loaders whose loops stand beside another one; by these steps if left out.
        over: `loader`'s loop has ended: it is judged by all steps of its last segment, and in the past tense.
    """
    if not len(rows.time):
        return None
    secondary_ids = secondary_loaders(steps) if secondary_ids is None else secondary_ids
    newest = _newest(steps, rows, loader, secondary_ids)
    if newest is None:
        return None
    loader, ended = newest
    state = next((dict(state) for state in loaders if str(state.get("id")) == loader), {})
    with np.errstate(all="ignore"):
        longest = (math.inf, len(steps)) if over else (LONGEST_S, MOST_STEPS)
        frames, segment, began = _under_way(rows, steps, events, state, loader, ended, longest)
        known = measured_gains(
            events, segment, switch_pairs(steps, events) if switched is None else switched, segment.end
        )
        found = judge(frames, segment, state, _limits(last, loader, segment), known)
        found, decision = with_advice(frames, segment, found, state, _withheld(loader, secondary_ids, steps, loaders))
        offered = offer(decision, state)
    sentence = found.sentence
    if over:
        sentence = past(sentence)
    elif segment.start > began:
        sentence += f" That is of the last {segment.end - segment.start:.0f} s."
    return {**plain(replace(found, sentence=sentence)), "loader": loader, "over": over, "offer": plain(offered)}


def _withheld(
    loader: str, secondary_ids: Collection[str], steps: StepTable, loaders: Sequence[Mapping[str, Any]]
) -> str | None:
    if loader not in secondary_ids:
        return None
    names = {str(state.get("id")): str(state.get("name")) for state in loaders}
    taken = {other: float(steps.of(other)["step"].sum()) for other in steps.loaders if other not in secondary_ids}
    main = max(taken, key=lambda other: taken[other], default=None)
    return secondary_reason("another loader" if main is None else names.get(main, main))


def _limits(last: Mapping[str, Any] | None, loader: str, segment: Segment) -> dict[str, float]:
    """Return the thresholds, moved so that the kind of the last verdict on this segment is kept near them."""
    limits = dict(THRESHOLDS)
    if last is None or last.get("loader") != loader or last.get("segment") != segment.key:
        return limits
    for share, kind in KINDS.items():
        if last["kind"] == kind:
            limits[share] *= _HYSTERESIS
        elif last["kind"] == "compute-bound":
            limits[share] /= _HYSTERESIS
    return limits


def _newest(
    steps: StepTable, rows: Rows, loader: str | None, secondary_ids: Collection[str] = ()
) -> tuple[str, float] | None:
    """Return the loader whose step ended last (or that one), and when; None after a pause of the loop.

    While a loop beside another runs, it is the newest of the others, if there is any.
    """
    if loader is not None:
        own = steps.of(loader)
        return (loader, float(own["end"][-1])) if len(own) else None
    now = float(rows.time[-1])
    if len(steps):
        newest = steps.rows[-1]
        ended = float(newest["end"])
        if now - ended > max(IDLE_S, 5 * newest["step"]):
            return None
        known = [steps.loaders[int(number)] for number in np.unique(steps.rows["loader"])]
        last_ends = {other: float(steps.of(other)["end"][-1]) for other in known if other not in secondary_ids}
        last = max(last_ends, key=lambda other: last_ends[other], default=steps.loaders[int(newest["loader"])])
        return last, last_ends.get(last, ended)
    for info in rows.schema.loaders:
        column = rows.schema.columns.get(f"loader/{info.id}/step")
        if column is None:
            continue
        with_steps = np.flatnonzero(np.isfinite(rows.values[:, column]))
        if len(with_steps) and now - float(rows.time[with_steps[-1]]) <= IDLE_S:
            return info.id, float(rows.time[with_steps[-1]])
    return None


def _under_way(
    rows: Rows,
    steps: StepTable,
    events: Sequence[Mapping[str, Any]],
    state: Mapping[str, Any],
    loader: str,
    ended: float,
    longest: tuple[float, int],
) -> tuple[Frames, Segment, float]:
    """Return the segment since the last change, the rows and steps that it is made from, and when it began (session s).

    At most the last of it is taken: so many s and steps as `longest` says.
    """
    changes = [
        event
        for event in events
        if event.get("kind") in CHANGES and event.get("loader") in (None, loader) and change_time(event) <= ended
    ]
    change = max(changes, key=change_time, default=None)
    own = steps.of(loader, -math.inf, ended)
    ends = own["end"].copy()
    began = -math.inf if change is None else change_time(change)
    since = began
    if change is not None and change["kind"] == "switch":
        since = settle_time(change, ends, None if len(ends) else rows)
    chosen = own[int(np.searchsorted(ends, max(since, ended - longest[0]), side="right")) :]
    if len(chosen) > longest[1]:
        chosen = chosen[-longest[1] :]
    known = float(chosen["end"][0]) - float(chosen["step"][0]) - 1e-9 if len(chosen) else float(rows.time[0])
    start = max(since, ended - longest[0], known)
    # All of the segment that is known, or a part of it.
    first_known = float(ends[int(np.searchsorted(ends, since, side="right"))]) if len(chosen) else start
    whole = len(chosen) == 0 or float(chosen["end"][0]) <= first_known
    backend, began_by = str(state.get("backend", WATCHED)), "start" if change is None else str(change["kind"])
    part = Part(loader, backend, began_by, start, ended, knobs=known_knobs(state.get("knobs") or {}))
    frames = Frames(rows, steps, start, ended)
    name = str(state.get("name", loader))
    key = name if change is None else f"{name}@{began:.3f}"
    segment = figures(frames, part, name, key=key, metrics=("cpu", "gpu"))
    return frames, segment, start if whole else -math.inf


# ---- The warnings of rules on the loops under way, which pages show with their verdicts.

State = Mapping[str, Any]


def change_warnings(
    rows: Rows, steps: StepTable, events: Sequence[State], states: Sequence[State], loader: str
) -> tuple[str, ...]:
    """Return warnings on what the newest change of a loader (its id) did to the training, a sentence each.

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
        _, decision = with_advice(frames, parts[-1], judge(frames, parts[-1], state, THRESHOLDS, ()), state)
        found = evaluate(snapshot, parts, frames=frames, decisions={parts[-1].key: decision}, only=("host-contention",))
    return warnings([finding for finding in found if finding.segment is not None], parts[-1].key)


def epoch_warnings(rows: Rows, states: Sequence[State]) -> tuple[str, ...]:
    """Return warnings on epochs that ended with too few samples, by the loaders' own counts.

    `states` are with the counts of the epochs before the newest, as `epochs`.
    """
    snapshot = _snapshot(rows, StepTable(), [], states)
    return warnings(evaluate(snapshot, (), frames=Frames(snapshot), only=("empty-epoch",)), None)


def sample_warnings(rows: Rows, event: State, states: Sequence[State]) -> tuple[str, ...]:
    """Return warnings on slow samples, by the newest event `sample-times` of a loader."""
    snapshot = _snapshot(rows, StepTable(), [dict(event)], states)
    return warnings(evaluate(snapshot, (), frames=Frames(snapshot), only=("slow-samples",)), None)


def _snapshot(rows: Rows, steps: StepTable, events: list[dict[str, Any]], states: Sequence[State]) -> Snapshot:
    loader_states = [dict(state) for state in states]
    return Snapshot(rows.schema, rows.seq, rows.time, rows.values, events, loader_states, {}, steps)
