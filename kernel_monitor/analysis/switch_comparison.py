"""What switching the loader's engine brought, as one sentence at the end of a training (`last_comparison`).

From the same figures as the strip of the page (`strip.py`), so that the two agree where both are seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MonitorError
from .aggregates import measure
from .switches import REPLAYS, SHORTEST_S, compare, switches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import Snapshot
    from .aggregates import Measured
    from .switches import Comparison, Event

FEWEST_STEPS = 10
"""Rows with a finished step that each side must have: the strip can be looked at again, this is said once."""
ALIKE = 0.05  # two rates this close to each other are called alike


@dataclass(frozen=True)
class SwitchComparison:
    """What a switch changed; as text it is one sentence with the counts behind it.

    Attributes:
        sentence: for people, also where there is nothing to compare: then it says why.
        switch: the event (`source`, `target`, `epoch`, `batch`, and more); None where no switch took place.
        before, after: what was measured on both sides, at most a minute each; None without a switch.
        faster: images/s after over before; NaN where they cannot be compared.
    """

    sentence: str
    switch: Event | None = None
    before: Measured | None = None
    after: Measured | None = None
    faster: float = math.nan

    def __str__(self) -> str:
        return self.sentence

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self.sentence)


def last_comparison(snapshot: Snapshot, loader: str | None = None) -> SwitchComparison:
    """The newest switch of a loader that can be compared, or why none can.

    `loader` is an id or name; left out, it is the one that switched last, or else the one that delivered last.

    Raises:
        MonitorError: no loader is called that.
    """
    names = {info.id: info.name for info in snapshot.schema.loaders}
    names |= {str(state["id"]): str(state["name"]) for state in snapshot.loaders}
    delivered = {}  # when each loader that has delivered did so last, session s
    for known in names:
        column = snapshot.schema.columns.get(f"loader/{known}/images")
        places = [] if column is None else np.flatnonzero(snapshot.values[:, column] > 0).tolist()
        if places:
            delivered[known] = float(snapshot.time[places[-1]])
    done = switches(snapshot.events)
    chosen = _chosen(loader, names, delivered, done)
    if chosen is None:
        return SwitchComparison("No loader has delivered a batch since the monitor was started.")
    several = len({names[known] for known in delivered}) > 1  # a loader that its cell made again has the same name
    prefix = f"{names.get(chosen, chosen)}: " if several else ""
    places = [place for place, event in enumerate(done) if str(event["loader"]) == chosen]
    if not places:
        return SwitchComparison(prefix + _no_switch(snapshot, chosen))
    compared = [compare(snapshot, snapshot.events, place) for place in places]
    found = [comparison for comparison in compared if comparison is not None]
    for number, last in reversed(list(enumerate(found, 1))):
        if last.reason is None and _enough(last.before) and _enough(last.after):
            text = _changed(last) + _which(number, len(found))
            faster = last.after.rate / last.before.rate
            return SwitchComparison(prefix + text, last.switch, last.before, last.after, faster)
    last = found[-1]
    text = (
        f"{_took_over(last.switch)}, but too little was measured to compare ({_amount(last.before)} before, "
        f"{_amount(last.after)} after): each side takes {FEWEST_STEPS} steps and {SHORTEST_S:.0f} s."
    )
    return SwitchComparison(prefix + text, last.switch, last.before, last.after)


def _enough(side: Measured) -> bool:
    return len(side.step) >= FEWEST_STEPS and side.rate > 0


def _chosen(
    loader: str | None, names: dict[str, str], delivered: dict[str, float], done: Sequence[Event]
) -> str | None:
    """The id of the loader that is meant; None where nothing has delivered."""
    if loader is not None:
        meant = [number for number, name in names.items() if loader in (number, name)]
        if not meant:
            known = ", ".join(names.values()) or "none"
            raise MonitorError(f"No loader is called {loader!r}. The loaders are: {known}.")
        # Several where a cell was run again: the newest.
        return max(reversed(meant), key=lambda number: delivered.get(number, -math.inf))
    if done:
        return str(done[-1]["loader"])
    return max(delivered, key=lambda number: delivered[number], default=None)


def _changed(found: Comparison) -> str:
    event, before, after = found.switch, found.before, found.after
    faster = after.rate / before.rate
    judged = ""
    if REPLAYS in (event["source"], event["target"]):
        judged = f"; {REPLAYS} replays a few batches: the ceiling of any loader"
    elif abs(faster - 1) < ALIKE:
        judged = "; no real difference"
    elif faster < 1:
        judged = f"; slower: {event['source']} is the better one here"
    text = f"{_took_over(event)}: {_rate(before)} → {_rate(after)} images/s ({faster:.2f} ×{judged})"
    if math.isfinite(before.mean_wait) and math.isfinite(after.mean_wait):
        text += f", waiting for data {_wait(before)} → {_wait(after)} % of each step"
    return f"{text} ({_amount(before)}, {_amount(after, '')})."


def _which(number: int, count: int) -> str:
    if count == 1:
        return ""
    if number == count:
        return f" This was the last of {count} switches."
    return f" This was switch {number} of {count}; after the later ones too little was measured to compare."


def _no_switch(snapshot: Snapshot, loader: str) -> str:
    failed = [event for event in snapshot.events if event["kind"] == "switch-failed" and str(event["loader"]) == loader]
    why = f" ({failed[-1]['target']} failed: {str(failed[-1]['message']).rstrip('.')})" if failed else ""
    side = measure(snapshot, loader, 0.0, math.inf)
    if not side.rate > 0:
        return f"No switch took place{why}, and too little was measured to say more."
    state = next((state for state in snapshot.loaders if str(state["id"]) == loader), {})
    waiting = f", waiting for data {_wait(side)} % of each step" if math.isfinite(side.mean_wait) else ""
    engine = state.get("backend", "the loader")
    return f"No switch took place{why}: {engine} delivered {_rate(side)} images/s{waiting} ({_amount(side)})."


def _took_over(event: Event) -> str:
    place = "" if event.get("batch") is None else f" at batch {event['batch']:,}"
    if place and event.get("epoch") is not None:
        place += f" of epoch {event['epoch'] + 1:,}"
    return f"{event['target']} took over from {event['source']}{place}"


def _rate(side: Measured) -> str:
    return f"{side.rate:,.0f}" if side.rate >= 10 else f"{side.rate:.1f}"


def _wait(side: Measured) -> str:
    return f"{100 * side.mean_wait / side.mean_step:.0f}"


def _amount(side: Measured, unit: str = " images") -> str:
    return f"{side.samples:,.0f}{unit} in {side.seconds:.0f} s"
