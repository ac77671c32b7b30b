"""What switching the loader's engine brought, in words: one line of the page (`strip`), and at the end of a training
one sentence (`last_comparison`). Both are from the same figures, so that they agree where both are seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import MonitorError
from ..protocol.states import Strip, StripRow
from ..store import Rows, Snapshot, StepTable
from .frames import Floats, loader_names
from .switches import REPLAYS, SHORTEST_S, Comparison, Event, Measured, compare, measure, switches

SLOWER = 0.9  # with less than this share of the images/s of before, a switch is called slower
NBSP = "\N{NO-BREAK SPACE}"  # keeps a figure and its unit on one line of a narrow sidebar
FEWEST_STEPS = 10
"""Rows with a finished step that each side must have: the strip can be looked at again, this is said once."""
ALIKE = 0.05  # two rates this close to each other are called alike


@dataclass(frozen=True)
class SwitchComparison:
    """What a switch changed; as text it is one sentence with the counts behind it."""

    sentence: str  # for people, also where there is nothing to compare: then it says why
    switch: Event | None = None  # the event (`source`, `target`, `epoch`, `batch`, …); None where no switch took place
    # before, after: what was measured on both sides, at most a minute each; None without a switch
    before: Measured | None = None
    after: Measured | None = None
    faster: float = math.nan  # images/s after over before; NaN where they cannot be compared

    def __str__(self) -> str:
        return self.sentence

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self.sentence)


def strip(
    table: Rows, events: Sequence[Event], loaders: Sequence[Mapping[str, Any]], steps: StepTable | None = None
) -> Strip | None:
    """What the last switch changed; None before the first switch.

    `rows` is empty, and `text` says why, while there is too little to compare. Where there are several loaders, the
    text names the one that switched. A snapshot brings its own `steps`.
    """
    comparison = compare(table, events, steps=steps)
    if comparison is None:
        return None
    switch, before, after = comparison.switch, comparison.before, comparison.after
    source, target = switch["source"], switch["target"]
    state = next((state for state in loaders if state["id"] == switch["loader"]), None)
    text, rows, back = f"{source} → {target}: {comparison.reason}", [], None
    if comparison.reason is None:
        text, rows = _text(before, after), _rows(before, after)
    for side, engine in (("after", target), ("before", source)):
        if engine == REPLAYS:
            text += f" · the figures {side} the switch are of replayed batches"
            break
    if comparison.reason is None and REPLAYS not in (source, target) and after.rate < SLOWER * before.rate:
        share = after.rate / before.rate
        text += f" · {target} runs at {share:.2f} of {source}'s speed here: switch back"
        if state is not None and _offers(state, switch):
            back = source
    if len(loaders) > 1:
        text = f"{switch['loader'] if state is None else state['name']}: {text}"
    return {"loader": switch["loader"], "source": source, "target": target, "text": text, "rows": rows, "back": back}


def _offers(state: Mapping[str, Any], switch: Event) -> bool:
    """Whether the way back is open: the engine is still the one switched to, and the one before it can be used."""
    usable = any(engine["name"] == switch["source"] and engine["available"] for engine in state.get("backends") or ())
    return usable and state["backend"] == switch["target"] and state.get("wanted") in (None, switch["target"])


def _rows(*sides: Measured) -> list[StripRow]:
    figures = (
        ("images/s", "images/s", [side.rate for side in sides]),
        ("data wait per step", "ms", [side.mean_wait for side in sides]),
        ("GPU p50", "%", [_percentile(side.gpu, 50) for side in sides]),
        ("CPU p95", "%", [_percentile(side.cpu, 95) for side in sides]),
        ("samples", "samples", [side.samples for side in sides]),
        ("counted over", "s", [side.seconds for side in sides]),
    )
    return [
        {"label": label, "unit": unit, "before": round(before, 2), "after": round(after, 2)}
        for label, unit, (before, after) in figures
        if math.isfinite(before) and math.isfinite(after)
    ]


def _text(before: Measured, after: Measured) -> str:
    # The gain comes first: where there is little room, it alone is seen.
    parts = [
        f"{before.rate:,.0f} → {after.rate:,.0f} images/s ({_count(before)} → {_count(after)})",
        f"data wait {_ms(before)} → {_ms(after)} ms per step",
    ]
    if len(before.gpu) and len(after.gpu):
        parts.append(f"GPU p50 {_percentile(before.gpu, 50):.0f} % → {_percentile(after.gpu, 50):.0f} %")
    if len(before.cpu) and len(after.cpu):
        parts.append(f"CPU p95 {_percentile(before.cpu, 95):.0f} % → {_percentile(after.cpu, 95):.0f} %")
    return " · ".join(parts)


def _count(side: Measured) -> str:
    return f"{side.samples:,.0f} in {side.seconds:.0f}{NBSP}s"


def _ms(side: Measured) -> str:
    return f"{side.mean_wait:.0f}" if side.mean_wait >= 10 else f"{side.mean_wait:.1f}"


def _percentile(values: Floats, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else math.nan


def last_comparison(snapshot: Snapshot, loader: str | None = None) -> SwitchComparison:
    """The newest switch of a loader that can be compared, or why none can.

    `loader` is an id or name; left out, it is the one that switched last, or else the one that delivered last.

    Raises:
        MonitorError: no loader is called that.
    """
    names = loader_names(snapshot)
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
            faster = last.after.rate / last.before.rate
            text = prefix + _changed(last, faster)
            if number < len(found):
                text += f" This was switch {number} of {len(found)}; "
                text += "after the later ones too little was measured to compare."
            elif number > 1:
                text += f" This was the last of {number} switches."
            return SwitchComparison(text, last.switch, last.before, last.after, faster)
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


def _changed(found: Comparison, faster: float) -> str:
    event, before, after = found.switch, found.before, found.after
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
