"""One sentence at the end of a training: what switching the loader's engine brought.

From the same stretches as the report, so that the sentence and the exported page agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from .stretches import LOADER, stretches
from .switches import REPLAYS, SHORTEST_S, asked, first, switches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import Snapshot
    from .model import Stretch
    from .switches import Event

FEWEST_STEPS = 10
"""Fewer steps on one side are not compared."""
ALIKE = 0.05
"""Two rates this close to each other are called alike."""


@dataclass(frozen=True)
class SwitchComparison:
    """What a switch changed; as text it is one sentence with the counts behind it.

    Attributes:
        sentence: for people, also where there is nothing to compare: then it says why.
        switch: the event (`source`, `target`, `epoch`, `batch`, and more); None where no switch took place.
        before, after: the stretches on both sides; None where no step was counted.
        faster: images/s after over before; NaN where they cannot be compared.
    """

    sentence: str
    switch: Event | None = None
    before: Stretch | None = None
    after: Stretch | None = None
    faster: float = math.nan

    def __str__(self) -> str:
        return self.sentence

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self.sentence)


def last_comparison(snapshot: Snapshot, loader: str | None = None) -> SwitchComparison:
    """The newest switch of a loader that can be compared, or why none can.

    Args:
        snapshot: the session.
        loader: its id or name; left out, the one that switched last, or else the one that delivered last.

    Raises:
        MonitorError: no loader, or more than one, is called that.
    """
    found = stretches(snapshot)
    names = {str(state["id"]): str(state["name"]) for state in snapshot.loaders} | {s.loader: s.name for s in found}
    done = switches(snapshot.events)
    chosen = _chosen(loader, names, found, done)
    if chosen is None:
        return SwitchComparison("No loader has delivered a batch since the monitor was started.")
    prefix = f"{names[chosen]}: " if len({one.name for one in found}) > 1 else ""  # not of a cell run twice
    own = [one for one in found if one.loader == chosen]
    done = [event for event in done if str(event["loader"]) == chosen]
    if not done:
        return SwitchComparison(prefix + _no_switch(own, snapshot, chosen))
    sides = [(event, *_sides(own, done, place)) for place, event in enumerate(done)]
    for place, (event, before, after) in reversed(list(enumerate(sides))):
        if before is not None and after is not None and _enough(before) and _enough(after):
            text = _changed(event, before, after) + _which(place + 1, len(done))
            return SwitchComparison(prefix + text, event, before, after, after.rate / before.rate)
    event, before, after = sides[-1]
    text = (
        f"{_took_over(event)}, but too little was measured to compare ({_amount(before)} before, {_amount(after)} "
        f"after): each side takes {FEWEST_STEPS} steps and {SHORTEST_S:.0f} s."
    )
    return SwitchComparison(prefix + text, event, before, after)


def _chosen(loader: str | None, names: dict[str, str], found: Sequence[Stretch], done: Sequence[Event]) -> str | None:
    """The id of the loader that is meant; None where nothing has delivered."""
    if loader is not None:
        meant = [number for number, name in names.items() if loader in (number, name)]
        if len(meant) != 1:
            known = ", ".join(names.values()) or "none"
            raise MonitorError(f"{len(meant)} loaders are called {loader!r}. The loaders are: {known}.")
        return meant[0]
    if done:
        return str(done[-1]["loader"])
    trained = [one for one in found if not one.evaluates] or found
    return max(trained, key=lambda one: one.end).loader if trained else None


def _sides(own: Sequence[Stretch], done: Sequence[Event], place: int) -> tuple[Stretch | None, Stretch | None]:
    """The stretches next to a switch: the last one before it was asked for, and the one that it began."""
    event = done[place]
    since = first(done[place - 1]) if place else -math.inf
    until = first(done[place + 1]) if place + 1 < len(done) else math.inf
    before = [one for one in own if since <= one.start and one.end <= asked(event) and one.backend == event["source"]]
    after = [one for one in own if one.began_by == "switch" and first(event) <= one.start < until]
    return (before[-1] if before else None), (after[0] if after else None)


def _enough(side: Stretch) -> bool:
    return side.steps >= FEWEST_STEPS and side.seconds >= SHORTEST_S and side.rate > 0


def _changed(event: Event, before: Stretch, after: Stretch) -> str:
    faster = after.rate / before.rate
    judged = ""
    if REPLAYS in (event["source"], event["target"]):
        judged = f"; {REPLAYS} replays a few batches: the ceiling of any loader"
    elif abs(faster - 1) < ALIKE:
        judged = "; no real difference"
    elif faster < 1:
        judged = f"; slower: {event['source']} is the better one here"
    text = f"{_took_over(event)}: {_rate(before)} → {_rate(after)} images/s ({faster:.2f} ×{judged})"
    if math.isfinite(before.wait) and math.isfinite(after.wait):
        text += f", waiting for data {_wait(before)} → {_wait(after)} % of each step"
    return f"{text} ({_amount(before)}, {_amount(after, '')})."


def _which(number: int, count: int) -> str:
    if count == 1:
        return ""
    if number == count:
        return f" This was the last of {count} switches."
    return f" This was switch {number} of {count}; after the later ones too little was measured to compare."


def _no_switch(own: Sequence[Stretch], snapshot: Snapshot, loader: str) -> str:
    failed = [event for event in snapshot.events if event["kind"] == "switch-failed" and str(event["loader"]) == loader]
    why = f" ({failed[-1]['target']} failed: {str(failed[-1]['message']).rstrip('.')})" if failed else ""
    counted = [one for one in own if one.steps and one.rate > 0]
    if not counted:
        return f"No switch took place{why}, and no step was counted."
    side = max(counted, key=lambda one: one.steps)
    engine = "the loader" if side.backend == LOADER else side.backend
    waiting = f", waiting for data {_wait(side)} % of each step" if math.isfinite(side.wait) else ""
    return f"No switch took place{why}: {engine} delivered {_rate(side)} images/s{waiting} ({_amount(side)})."


def _took_over(event: Event) -> str:
    place = "" if event.get("batch") is None else f" at batch {event['batch']:,}"
    if place and event.get("epoch") is not None:
        place += f" of epoch {event['epoch'] + 1:,}"
    return f"{event['target']} took over from {event['source']}{place}"


def _rate(side: Stretch) -> str:
    return f"{side.rate:,.0f}" if side.rate >= 10 else f"{side.rate:.1f}"


def _wait(side: Stretch) -> str:
    return f"{100 * side.wait / side.step:.0f}"


def _amount(side: Stretch | None, unit: str = " images") -> str:
    return f"0{unit}" if side is None else f"{side.samples:,}{unit} in {side.seconds:.0f} s"
