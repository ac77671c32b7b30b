"""The verdict on the segment under way (`live_verdict`): cheap enough for every two seconds of a training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..store import Rows
from ..store.steps import StepTable
from .advice import offer
from .decision import WATCHED
from .frames import IDLE_S, Frames
from .gains import Pair, pairs, tried
from .loops import beside, of_steps
from .results import Segment, plain
from .segments import Part, figures, known_knobs
from .switches import first
from .verdict import KINDS, THRESHOLDS, advised, judge

LONGEST_S = 60.0  # only so much of the newest past is judged: the verdict follows the loop
MOST_STEPS = 2000
CHANGES = ("switch", "knobs", "mark")
HYSTERESIS = 0.8  # the last verdict is kept until its share is below the threshold by this factor


def live_verdict(
    rows: Rows,
    steps: StepTable,
    events: Sequence[Mapping[str, Any]],
    loaders: Sequence[Mapping[str, Any]],
    last: Mapping[str, Any] | None = None,
    *,
    loader: str | None = None,
    switched: Sequence[Pair] | None = None,
) -> dict[str, Any] | None:
    """The verdict on the loader that delivered last, as JSON of `Verdict` with `loader` (its id).

    `offer` is the switch that may be offered, as JSON of `advice.Offer`, or None; of an evaluation beside a training
    there is none. None where no loader has delivered in the last few seconds, or `loader` has not in these rows.

    Args:
        rows, steps: of the last minute at least.
        events, loaders: of the session; the loaders' states.
        last: what was returned last time: its kind is kept while the loop is near a threshold.
        loader: the id of the one to judge, whenever it delivered last.
        switched: what switches of the session measured; those of these steps if left out.
    """
    if not len(rows.time):
        return None
    newest = _newest(steps, rows, loader)
    if newest is None:
        return None
    loader, ended = newest
    state = next((dict(state) for state in loaders if str(state.get("id")) == loader), {})
    with np.errstate(all="ignore"):
        frames, segment = _under_way(rows, steps, events, state, loader, ended)
        known = tried(events, segment, pairs(steps, events) if switched is None else switched, segment.end)
        found = judge(frames, segment, state, _limits(last, loader, segment), known)
        found, decision = advised(frames, segment, found, state)
        offered = offer(decision, state)
    if offered is not None and loader in beside(of_steps(steps, -math.inf, math.inf)):
        offered = None
    return {**plain(found), "loader": loader, "offer": plain(offered)}


def _limits(last: Mapping[str, Any] | None, loader: str, segment: Segment) -> dict[str, float]:
    """The thresholds, moved so that the kind of the last verdict on this segment is kept near them."""
    limits = dict(THRESHOLDS)
    if last is None or last.get("loader") != loader or last.get("segment") != segment.key:
        return limits
    for share, kind in KINDS.items():
        if last["kind"] == kind:
            limits[share] *= HYSTERESIS
        elif last["kind"] == "compute-bound":
            limits[share] /= HYSTERESIS
    return limits


def _newest(steps: StepTable, rows: Rows, loader: str | None) -> tuple[str, float] | None:
    """The loader whose step ended last (or that one), and when; None after a pause of the loop."""
    if loader is not None:
        own = steps.of(loader)
        return (loader, float(own["end"][-1])) if len(own) else None
    now = float(rows.time[-1])
    if len(steps):
        newest = steps.rows[-1]
        ended = float(newest["end"])
        return (steps.loaders[int(newest["loader"])], ended) if now - ended <= max(IDLE_S, 5 * newest["step"]) else None
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
) -> tuple[Frames, Segment]:
    """The segment since the last change, at most a minute of it, and the rows and steps that it is made from."""
    changes = [
        event
        for event in events
        if event.get("kind") in CHANGES and event.get("loader") in (None, loader) and first(event) <= ended
    ]
    change = max(changes, key=first, default=None)
    began = -math.inf if change is None else first(change)
    start = max(began, ended - LONGEST_S)
    chosen = steps.of(loader, start, ended)[-MOST_STEPS:]
    known = float(chosen["end"][0]) - float(chosen["step"][0]) - 1e-9 if len(chosen) else float(rows.time[0])
    start = max(start, known)
    backend, began_by = str(state.get("backend", WATCHED)), "start" if change is None else str(change["kind"])
    part = Part(loader, backend, began_by, start, ended, knobs=known_knobs(state.get("knobs") or {}))
    frames = Frames(rows, steps, start, ended)
    name = str(state.get("name", loader))
    key = name if change is None else f"{name}@{began:.3f}"
    return frames, figures(frames, part, name, key=key, metrics=("cpu", "gpu"))
