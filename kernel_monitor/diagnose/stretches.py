"""The stretches of a session: each loader between two switches, turned knobs or marks, with its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import Part, figures
from .frames import Frames
from .measured import IDLE_S
from .switches import IN_FLIGHT, asked, first, settled, switches

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from ..store import Snapshot
    from .model import Stretch
    from .switches import Event

KNOBS = ("workers", "prefetch", "threads")
TURNED_BY = {"torchvision": ("workers", "prefetch"), "dali-cpu": ("prefetch", "threads")}
"""The knobs that a backend heeds; those of `dali-gpu` are those of `dali-cpu`, those of any other are none."""
LOADER = "loader"
"""The backend of what is watched and not switchable."""


def stretches(snapshot: Snapshot, frames: Frames | None = None) -> tuple[Stretch, ...]:
    """Every loader's stretches, in the order of their beginnings.

    A stretch ends where a switch is asked for, a knob of the backend in use is turned, or a mark is set. The
    change-over belongs to none: after a switch as `switches.settled` says, after a knob the batches that were under
    way. A mark belongs to every loader that delivers before its next change, or did not pause there, and to the only
    one. A stretch without a step is left out unless a mark began it.

    Args:
        snapshot: the session.
        frames: its rows, where others read them too.
    """
    rows = Frames(snapshot) if frames is None else frames
    names = _names(snapshot)
    found = []
    for loader in names:
        delivered = _deliveries(rows, loader)
        for part in _parts(rows, loader, delivered, several=len(names) > 1):
            made = figures(rows, _trimmed(rows, part, delivered), names[loader])
            if made.steps or made.left_out or part.began_by == "mark":
                found.append(made)
    numbers: dict[str, int] = {}
    keyed = []
    for one in sorted(found, key=lambda one: (one.start, one.loader)):
        numbers[one.name] = numbers.get(one.name, 0) + 1
        keyed.append(replace(one, key=f"{one.name}/{numbers[one.name]}"))
    return tuple(keyed)


def _names(snapshot: Snapshot) -> dict[str, str]:
    """Every loader of the session by its id."""
    names = {str(state["id"]): str(state["name"]) for state in snapshot.loaders}
    for info in snapshot.schema.loaders:
        names.setdefault(info.id, info.name)
    for loader in (*snapshot.steps.loaders, *(str(event["loader"]) for event in switches(snapshot.events))):
        names.setdefault(loader, loader)
    return names


def _deliveries(rows: Frames, loader: str) -> npt.NDArray[np.float64]:
    """When steps of the loader ended; without a table of steps, the rows that had a delivery."""
    ends: npt.NDArray[np.float64] = rows.steps(loader)["end"].copy()
    if len(ends):
        return ends
    images, step = rows.series(f"loader/{loader}/images"), rows.series(f"loader/{loader}/step")
    return rows.time[(images > 0) | np.isfinite(step)]


def _parts(rows: Frames, loader: str, delivered: npt.NDArray[np.float64], *, several: bool) -> Iterable[Part]:
    """What lies between the changes; `several`: there are other loaders."""
    if len(delivered) == 0:
        return []
    snapshot = rows.snapshot
    own = [event for event in switches(snapshot.events) if str(event["loader"]) == loader]
    state = next((state for state in snapshot.loaders if str(state["id"]) == loader), {})
    turned = [event for event in snapshot.events if event["kind"] == "knobs" and str(event.get("loader")) == loader]
    backend = str(own[0]["source"]) if own else str(state.get("backend", LOADER))
    knobs = {} if turned else _knobs(state.get("knobs") or {})
    marks = [event for event in snapshot.events if event["kind"] == "mark"]
    changes = sorted(
        [*own, *turned, *marks], key=lambda event: first(event) if event["kind"] == "switch" else _at(event)
    )
    part = Part(loader, backend, "start", -np.inf, knobs=knobs)
    done = []
    for place, event in enumerate(changes):
        if event["kind"] == "switch":
            until, since = asked(event), settled(snapshot, event)
            following = replace(part, backend=str(event["target"]), began_by="switch", label=None)
        elif event["kind"] == "knobs":
            told = _knobs(event)
            heeded = TURNED_BY.get(part.backend.replace("dali-gpu", "dali-cpu"), ())
            if all(part.knobs.get(name) == told.get(name) for name in heeded):
                part = replace(part, knobs=told)
                continue
            until, since = _at(event), _used_up(part, event, delivered)
            following = replace(part, knobs=told, began_by="knobs", label=None)
        else:
            until = since = _at(event)
            later = next((_at(one) for one in changes[place + 1 :]), np.inf)
            if several and not _delivers(delivered, until, later):
                continue
            following = replace(part, began_by="mark", label=str(event.get("label", "")))
        done.append(replace(part, end=until))
        part = replace(following, start=max(since, part.start))
    return [one for one in [*done, part] if one.start < one.end]


def _at(event: Event) -> float:
    return float(event["time"])


def _knobs(told: dict[str, Any]) -> dict[str, int]:
    return {name: int(told[name]) for name in KNOBS if told.get(name) is not None}


def _used_up(part: Part, event: Event, delivered: npt.NDArray[np.float64]) -> float:
    """When the batches were used up that the engine had taken before its knobs were turned."""
    known = part.knobs
    under_way = known.get("workers", 0) * known.get("prefetch", 0) if part.backend == "torchvision" else 0
    after = delivered[delivered > _at(event)]
    return _at(event) if len(after) == 0 else float(after[min(max(IN_FLIGHT, under_way), len(after)) - 1])


def _delivers(delivered: npt.NDArray[np.float64], mark: float, later: float) -> bool:
    """Whether a loader delivers between a mark and the next change, or did not pause there."""
    place = int(np.searchsorted(delivered, mark, side="right"))
    if place == len(delivered):
        return False
    before = float(delivered[place - 1]) if place else -np.inf
    return bool(delivered[place] <= later or delivered[place] - before <= IDLE_S)


def _trimmed(frames: Frames, part: Part, delivered: npt.NDArray[np.float64]) -> Part:
    """The same from the beginning of its first step (a mark's from the mark) to the end of its last."""
    low, high = np.searchsorted(delivered, [part.start, part.end], side="right")
    inside = delivered[low:high]
    snapshot = frames.snapshot
    last = max([0.0, *snapshot.time[-1:].tolist(), *delivered[-1:].tolist()])
    if len(inside) == 0:
        return replace(part, start=max(part.start, 0.0), end=min(part.end, max(last, part.start)))
    rows = frames.steps(part.loader, part.start, part.end)
    begun = float(rows["end"][0] - rows["step"][0]) if len(rows) else float(inside[0]) - snapshot.schema.interval
    start = part.start if part.began_by == "mark" else max(part.start, begun, 0.0)
    return replace(part, start=start, end=float(inside[-1]))
