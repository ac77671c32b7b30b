"""The effect of switching a loader's engine in words: the strip of the page, and a sentence at the end of a training.

Both are of one `results.Change` between two segments (`changes.py`), whose figures the report and the JSON have, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import MonitorError
from ..protocol.states import Strip, StripRow
from ..store import Rows, Snapshot, StepTable
from .changes import ALIKE, NEEDED_S, NEEDED_STEPS, amount, changes, factor, figure, headline, percent, rounded
from .frames import loader_names
from .loops import secondary_loaders
from .results import Change, Segment
from .segments import REPLAYS, Event, change_time, in_run, segments, switches

SLOWER = 0.9  # with less than this share of the images/s of before, a switch is called slower
_NBSP = "\N{NO-BREAK SPACE}"  # keeps a figure and its unit on one line of a narrow sidebar
_MEASURING_S = 15.0  # for so long after its first batch an engine that cannot be compared yet is said to be measured
METRICS = ("cpu", "gpu")


@dataclass(frozen=True)
class SwitchComparison:
    """The comparison of both sides of a switch; as text it is one sentence with the counts behind it."""

    sentence: str  # for people, also where there is nothing to compare: then it says why
    switch: Event | None = None  # the event (`source`, `target`, `epoch`, `batch`, …); None where no switch took place
    # before, after: the two sides; None where nothing was measured of one, or there was no switch
    before: Segment | None = None
    after: Segment | None = None
    faster: float = math.nan  # images/s after over before; NaN where they cannot be compared

    def __str__(self) -> str:
        return self.sentence

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self.sentence)


class SwitchComparisons(NamedTuple):
    """The segments of the loaders that switched, by their keys, their changes, and the one that says most."""

    segments: dict[str, Segment]
    changes: tuple[Change, ...]
    headline: Change | None

    def sides(self, change: Change) -> tuple[Segment, Segment]:
        return self.segments[change.before], self.segments[change.after]


def compare(snapshot: Snapshot, loaders: Sequence[str] | None = None) -> SwitchComparisons:
    """Compare all switches of a session, or those of `loaders` (their ids)."""
    chosen = {str(event["loader"]) for event in switches(snapshot.events)}
    with np.errstate(all="ignore"):
        parts = segments(snapshot, loaders=chosen if loaders is None else chosen.intersection(loaders), metrics=METRICS)
        made = changes(parts, snapshot.events)
        return SwitchComparisons(
            {part.key: part for part in parts}, made, headline(parts, made, secondary_loaders(snapshot.steps))
        )


def switch_strip(
    table: Rows, events: Sequence[Event], loaders: Sequence[Mapping[str, Any]], steps: StepTable | None = None
) -> Strip | None:
    """Return the comparison of the most informative switch (`changes.headline`); None before the first switch.

    An engine that has just come is said to be measured until it can be compared. `rows` is empty, and `text` says why,
    while there is too little to compare. Where there are several loaders, the text names the one that switched. A
    snapshot brings its own `steps`. None, too, for a switch of *Diagnose* or *Tune*.
    """
    done = switches(events)
    if not done:
        return None
    if steps is None:
        steps = table.steps if isinstance(table, Snapshot) else StepTable()
    states = [dict(state) for state in loaders]
    snapshot = Snapshot(table.schema, table.seq, table.time, table.values, [*map(dict, events)], states, {}, steps)
    found = compare(snapshot)
    newest = done[-1]
    of_newest = next((made for made in found.changes if _is(made, newest)), None)
    pending = of_newest is None or of_newest.reason is not None
    # Another loader's switch does not hide the one that says most.
    best = None if found.headline is None or found.headline.switch is None else found.headline.switch["loader"]
    own = best in (None, newest["loader"])
    fresh = pending and own and len(table.time) > 0 and float(table.time[-1]) < change_time(newest) + _MEASURING_S
    if fresh or found.headline is None or found.headline.switch is None:
        return None if _in_run(newest, events) else _without_figures(newest, of_newest, states, fresh=fresh)
    switch = found.headline.switch
    if _in_run(switch, events):
        return None
    before, after = found.sides(found.headline)
    source, target = str(switch["source"]), str(switch["target"])
    state = next((state for state in states if state["id"] == switch["loader"]), None)
    text, back = _change_text(before, after, several=len(states) > 1), None
    if REPLAYS in (source, target):
        text += _replayed(switch)
    elif found.headline.faster < SLOWER:
        text += f" · switch back to {source}"
        if state is not None and _offers(state, switch):
            back = source
    return _strip(switch, state, len(states) > 1, text, change_rows(before, after), back)


def _in_run(switch: Event, events: Sequence[Event]) -> bool:
    """Return whether a diagnosis or a tune that has ended made a switch: its result tells what it brought."""
    made = change_time(switch)
    return in_run(str(switch["loader"]), made, made, events)


def _is(change: Change, event: Event) -> bool:
    switch = change.switch
    return switch is not None and (switch["loader"], change_time(switch)) == (event["loader"], change_time(event))


def _without_figures(
    switch: Event, change: Change | None, states: Sequence[Mapping[str, Any]], *, fresh: bool
) -> Strip:
    """Return a switch that cannot be compared, or not yet."""
    reason = "measuring…" if fresh else "too little was measured after the switch to compare"
    if change is not None and change.reason is not None and not (fresh and " after " in change.reason):
        reason = change.reason
    state = next((state for state in states if state["id"] == switch["loader"]), None)
    text = f"{switch['source']} → {switch['target']}: {reason}{_replayed(switch)}"
    return _strip(switch, state, len(states) > 1, text, [], None)


def _strip(
    switch: Event,
    state: Mapping[str, Any] | None,
    several: bool,
    text: str,
    rows: list[StripRow],
    back: str | None,
) -> Strip:
    loader, source, target = str(switch["loader"]), str(switch["source"]), str(switch["target"])
    if several:
        text = f"{loader if state is None else state['name']}: {text}"
    return {"loader": loader, "source": source, "target": target, "text": text, "rows": rows, "back": back}


def _replayed(switch: Event) -> str:
    for side, engine in (("after", switch["target"]), ("before", switch["source"])):
        if engine == REPLAYS:
            return f" · the figures {side} the switch are of replayed batches"
    return ""


def _offers(state: Mapping[str, Any], switch: Event) -> bool:
    """Return whether the way back is open: the engine is still the one switched to, and the former one can be used."""
    usable = any(engine["name"] == switch["source"] and engine["available"] for engine in state.get("backends") or ())
    return usable and state["backend"] == switch["target"] and state.get("wanted") in (None, switch["target"])


def change_rows(before: Segment, after: Segment) -> list[StripRow]:
    """Return the figures of both sides, rounded as `changes.figure` formats them; what one side lacks is left out."""
    sides = before, after
    figures = (
        ("images/s", "images/s", [side.rate for side in sides]),
        ("whole step", "ms", [side.step for side in sides]),
        ("data wait per step", "ms", [side.wait for side in sides]),
        ("waiting for data", "%", [100 * side.wait_share for side in sides]),
        ("GPU p50", "%", [side.quantile("gpu", "p50") for side in sides]),
        ("CPU p95", "%", [side.quantile("cpu", "p95") for side in sides]),
        ("samples", "samples", [float(side.samples) for side in sides]),
        ("counted over", "s", [side.seconds for side in sides]),
    )
    return [
        {"label": label, "unit": unit, "before": rounded(values[0]), "after": rounded(values[1])}
        for label, unit, values in figures
        if math.isfinite(values[0]) and math.isfinite(values[1])
    ]


def _change_text(before: Segment, after: Segment, *, several: bool = False) -> str:
    """Return one line on two sides: the rate, the step and its wait, GPU and CPU.

    Where there are `several` loaders, the rate is said to be that of the time in which the loader's own loop runs.
    """
    counts = f"{_amount(before)} → {_amount(after)}"
    alone = " while it loops" if several else ""
    # The gain comes first: where there is little room, it alone is seen.
    rates = f"{figure(before.rate)} → {figure(after.rate)} images/s{alone}"
    parts = [f"{rates}, {factor(after.rate / before.rate)} ({counts})"]
    if math.isfinite(before.step) and math.isfinite(after.step):
        parts.append(f"step {figure(before.step)} → {figure(after.step)}{_NBSP}ms")
    if math.isfinite(before.wait) and math.isfinite(after.wait):
        shares = f"{percent(before.wait_share)} → {percent(after.wait_share)}{_NBSP}% of the step"
        parts.append(f"waiting for data {figure(before.wait)} → {figure(after.wait)}{_NBSP}ms ({shares})")
    for label, metric, quantile in (("GPU p50", "gpu", "p50"), ("CPU p95", "cpu", "p95")):
        values = [side.quantile(metric, quantile) for side in (before, after)]
        if all(map(math.isfinite, values)):
            parts.append(f"{label} {figure(values[0])} → {figure(values[1])}{_NBSP}%")
    return " · ".join(parts)


def _amount(side: Segment) -> str:
    return amount(side.samples, side.seconds, unit="", space=_NBSP)


def comparison(snapshot: Snapshot, loader: str | None = None) -> SwitchComparison:
    """Return the comparison of the most informative switch (`changes.headline`), or why there is none.

    `loader` is an id or name; left out, it is the one whose switch says most, else the one that switched last, or else
    the one that delivered last.

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
        steps = snapshot.steps.of(known)
        if len(steps):
            delivered[known] = max(delivered.get(known, 0.0), float(steps["end"][-1]))
    done = switches(snapshot.events)
    chosen = _chosen(loader, names, delivered, done)
    if chosen is None:
        return SwitchComparison("No loader has delivered a batch since the monitor was started.")
    several = len({names[known] for known in delivered}) > 1  # a loader that its cell made again has the same name
    found = compare(snapshot, None if loader is None else [chosen])
    main_change = found.headline
    if main_change is not None and main_change.switch is not None:
        before, after = found.sides(main_change)
        own = [event for event in done if str(event["loader"]) == after.loader]
        text = _named(after.name, several) + sentence(main_change, before, after)
        text += _others(main_change, own, done, found, names)
        return SwitchComparison(text, main_change.switch, before, after, main_change.faster)
    own = [event for event in done if str(event["loader"]) == chosen]
    prefix = _named(names.get(chosen, chosen), several)
    if not own:
        return SwitchComparison(prefix + _no_switch(snapshot, chosen))
    text, before_, after_ = _too_little(own[-1], found)
    return SwitchComparison(prefix + text, own[-1], before_, after_)


def _named(name: str, several: bool) -> str:
    return f"{name}: " if several else ""


def _chosen(
    loader: str | None, names: dict[str, str], delivered: dict[str, float], done: Sequence[Event]
) -> str | None:
    """Return the id of the loader that is meant; None where nothing has delivered."""
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


def sentence(change: Change, before: Segment, after: Segment) -> str:
    """Return the effect of a switch in a sentence, with the counts behind it."""
    event = change.switch or {"source": before.backend, "target": after.backend}
    judged = ""
    if REPLAYS in (event["source"], event["target"]):
        judged = f"; {REPLAYS} replays a few batches: the ceiling of any loader"
    elif change.faster < 1 - ALIKE:
        judged = f": {event['source']} is the better one here"
    text = f"{_took_over(event)}: {figure(before.rate)} → {figure(after.rate)} images/s "
    text += f"({factor(change.faster)}{judged})"
    if math.isfinite(before.wait) and math.isfinite(after.wait):
        shares = f"{percent(before.wait_share)} → {percent(after.wait_share)} % of each step"
        text += f", waiting for data {shares} ({figure(before.step)} → {figure(after.step)} ms)"
    sides = amount(before.samples, before.seconds), amount(after.samples, after.seconds, "")
    return f"{text}; measured over {sides[0]}, then {sides[1]}."


def _others(
    main_change: Change, own: Sequence[Event], done: Sequence[Event], found: SwitchComparisons, names: Mapping[str, str]
) -> str:
    """Return a sentence on the loader's other switches, and one on a newer, not comparable switch of another loader."""
    place = next((place for place, event in enumerate(own) if _is(main_change, event)), 0)
    text = ""
    if place < len(own) - 1:
        text = f" This was switch {place + 1} of {len(own)}; after the later ones too little was measured to compare."
    elif place:
        text = f" This was the last of {len(own)} switches."
    last = done[-1]
    if last in own:
        return text
    newest = next((made for made in found.changes if _is(made, last)), None)
    if newest is None or newest.reason is not None:
        name = names.get(str(last["loader"]), str(last["loader"]))
        text += f" {name}: {_too_little(last, found)[0]}"
    return text


def _too_little(event: Event, found: SwitchComparisons) -> tuple[str, Segment | None, Segment | None]:
    """Return a sentence on a switch that cannot be compared, and its two sides."""
    change = next((made for made in found.changes if _is(made, event)), None)
    before, after = (None, None) if change is None else found.sides(change)
    if change is None:  # no step came after it
        own = [part for part in found.segments.values() if part.loader == event["loader"]]
        before = next((part for part in reversed(own) if part.start < change_time(event)), None)
    counts = [
        amount(0 if side is None else side.samples, 0.0 if side is None else side.seconds) for side in (before, after)
    ]
    text = (
        f"{_took_over(event)}, but too little was measured to compare ({counts[0]} before, {counts[1]} after): "
        f"each side takes {NEEDED_STEPS} steps and {NEEDED_S:.0f} s."
    )
    return text, before, after


def _no_switch(snapshot: Snapshot, loader: str) -> str:
    failed = [event for event in snapshot.events if event["kind"] == "switch-failed" and str(event["loader"]) == loader]
    why = ""
    if failed:
        target, message = failed[-1]["target"], str(failed[-1]["message"]).rstrip(".")
        why = f" ({message})" if message.startswith(f"{target} cannot be used") else f" ({target} failed: {message})"
    with np.errstate(all="ignore"):
        own = [part for part in segments(snapshot, loaders=[loader], metrics=()) if part.rate > 0]
    if not own:
        return f"No switch took place{why}, and too little was measured to say more."
    side = max(own, key=lambda part: part.seconds)
    waiting = f", waiting for data {percent(side.wait_share)} % of each step" if math.isfinite(side.wait) else ""
    counts = amount(side.samples, side.seconds)
    return f"No switch took place{why}: {side.backend} delivered {figure(side.rate)} images/s{waiting} ({counts})."


def _took_over(event: Event) -> str:
    place = "" if event.get("batch") is None else f" at batch {event['batch']:,}"
    if place and event.get("epoch") is not None:
        place += f" of epoch {event['epoch'] + 1:,}"
    return f"{event['target']} took over from {event['source']}{place}"
