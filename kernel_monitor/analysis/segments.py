"""The segments of a session: each loader between two switches, turned knobs or marks, with its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .decision import WATCHED
from .deliveries import IDLE_S
from .frames import Frames
from .segment_figures import Part, figures
from .switches import IN_FLIGHT, asked, first, settled, switches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..store import Snapshot
    from .frames import Floats
    from .results import Segment

KNOBS = ("workers", "prefetch", "threads")
KNOBS_OF = {
    "torchvision": ("workers", "prefetch"),
    "dali-cpu": ("prefetch", "threads"),
    "dali-gpu": ("prefetch", "threads"),
}
"""The knobs that an engine heeds; any other heeds none."""


def segments(snapshot: Snapshot, frames: Frames | None = None) -> tuple[Segment, ...]:
    """Every loader's segments, in the order of their beginnings.

    A segment ends where a switch is asked for, a knob of the engine in use is turned, or a mark is set. The
    change-over belongs to none: after a switch until `switches.settled`, after a knob the batches that were under
    way. A mark belongs to every loader that delivers before its next change, or did not pause there, and to the only
    one. A segment without a step is left out unless a mark began it.
    """
    frames = Frames(snapshot) if frames is None else frames
    names = _names(snapshot)
    found = []
    for loader in names:
        delivered = _deliveries(frames, loader)
        for part in _parts(snapshot, loader, delivered, several=len(names) > 1):
            segment = figures(frames, _trimmed(frames, part, delivered), names[loader])
            if segment.steps or segment.left_out or part.began_by == "mark":
                found.append(segment)
    numbers: dict[str, int] = {}
    keyed = []
    for segment in sorted(found, key=lambda segment: (segment.start, segment.loader)):
        numbers[segment.name] = numbers.get(segment.name, 0) + 1
        keyed.append(replace(segment, key=f"{segment.name}/{numbers[segment.name]}"))
    return tuple(keyed)


def known_knobs(values: Mapping[str, Any]) -> dict[str, int]:
    """The knobs that a state or an event has values of."""
    return {name: int(values[name]) for name in KNOBS if values.get(name) is not None}


def _names(snapshot: Snapshot) -> dict[str, str]:
    """Every loader of the session by its id."""
    names = {str(state["id"]): str(state["name"]) for state in snapshot.loaders}
    for info in snapshot.schema.loaders:
        names.setdefault(info.id, info.name)
    for loader in (*snapshot.steps.loaders, *(str(event["loader"]) for event in switches(snapshot.events))):
        names.setdefault(loader, loader)
    return names


def _deliveries(frames: Frames, loader: str) -> Floats:
    """When steps of the loader ended; without a table of steps, the rows that had a delivery."""
    ends: Floats = frames.steps(loader)["end"].copy()
    if len(ends):
        return ends
    images, step = (frames.series(f"loader/{loader}/{part}") for part in ("images", "step"))
    return frames.time[(images > 0) | np.isfinite(step)]


def _parts(snapshot: Snapshot, loader: str, delivered: Floats, *, several: bool) -> Iterable[Part]:
    """What lies between the changes; `several`: there are other loaders."""
    if len(delivered) == 0:
        return []
    switched = [event for event in switches(snapshot.events) if str(event["loader"]) == loader]
    state = next((state for state in snapshot.loaders if str(state["id"]) == loader), {})
    turned = [event for event in snapshot.events if event["kind"] == "knobs" and str(event.get("loader")) == loader]
    marks = [event for event in snapshot.events if event["kind"] == "mark"]
    changes = sorted([*switched, *turned, *marks], key=first)
    backend = str(switched[0]["source"]) if switched else str(state.get("backend", WATCHED))
    part = Part(loader, backend, "start", -np.inf, knobs={} if turned else known_knobs(state.get("knobs") or {}))
    done = []
    for place, event in enumerate(changes):
        if event["kind"] == "switch":
            until, since = asked(event), settled(snapshot, event)
            following = replace(part, backend=str(event["target"]), began_by="switch", label=None)
        elif event["kind"] == "knobs":
            knobs = known_knobs(event)
            if all(part.knobs.get(name) == knobs.get(name) for name in KNOBS_OF.get(part.backend, ())):
                part = replace(part, knobs=knobs)
                continue
            until, since = first(event), _used_up(part, first(event), delivered)
            following = replace(part, knobs=knobs, began_by="knobs", label=None)
        else:
            until = since = first(event)
            later = float(changes[place + 1]["time"]) if place + 1 < len(changes) else np.inf
            if several and not _delivers(delivered, until, later):
                continue
            following = replace(part, began_by="mark", label=str(event.get("label", "")))
        done.append(replace(part, end=until))
        part = replace(following, start=max(since, part.start))
    return [part for part in [*done, part] if part.start < part.end]


def _used_up(part: Part, turned: float, delivered: Floats) -> float:
    """When the batches were used up that the engine had taken before its knobs were turned."""
    under_way = part.knobs.get("workers", 0) * part.knobs.get("prefetch", 0) if part.backend == "torchvision" else 0
    after = delivered[delivered > turned]
    return turned if len(after) == 0 else float(after[min(max(IN_FLIGHT, under_way), len(after)) - 1])


def _delivers(delivered: Floats, mark: float, later: float) -> bool:
    """Whether a loader delivers between a mark and the next change, or did not pause there."""
    place = int(np.searchsorted(delivered, mark, side="right"))
    if place == len(delivered):
        return False
    before = float(delivered[place - 1]) if place else -np.inf
    return bool(delivered[place] <= later or delivered[place] - before <= IDLE_S)


def _trimmed(frames: Frames, part: Part, delivered: Floats) -> Part:
    """The same from the beginning of its first step (a mark's from the mark) to the end of its last."""
    low, high = np.searchsorted(delivered, [part.start, part.end], side="right")
    inside = delivered[low:high]
    last = max([0.0, *frames.time[-1:].tolist(), *delivered[-1:].tolist()])
    if len(inside) == 0:
        return replace(part, start=max(part.start, 0.0), end=min(part.end, max(last, part.start)))
    rows = frames.steps(part.loader, part.start, part.end)
    begun = float(rows["end"][0] - rows["step"][0]) if len(rows) else float(inside[0]) - frames.schema.interval
    start = part.start if part.began_by == "mark" else max(part.start, begun, 0.0)
    return replace(part, start=start, end=float(inside[-1]))
