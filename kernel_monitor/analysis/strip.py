"""The strip: one line of the page on what the last switch changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .switches import REPLAYS, Comparison, Event, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..protocol.states import Strip, StripRow
    from ..store import StepTable
    from .aggregates import Measured
    from .frames import Floats, Table

SLOWER = 0.9  # with less than this share of the images/s of before, a switch is called slower
NBSP = "\N{NO-BREAK SPACE}"  # keeps a figure and its unit on one line of a narrow sidebar


def strip(
    table: Table, events: Sequence[Event], loaders: Sequence[Mapping[str, Any]], steps: StepTable | None = None
) -> Strip | None:
    """What the last switch changed; None before the first switch.

    `rows` is empty, and `text` says why, while there is too little to compare. Where there are several loaders, the
    text names the one that switched. A snapshot brings its own `steps`.
    """
    comparison = compare(table, events, steps=steps)
    if comparison is None:
        return None
    switch, before, after = comparison.switch, comparison.before, comparison.after
    state = next((state for state in loaders if state["id"] == switch["loader"]), None)
    name = switch["loader"] if state is None else state["name"]
    prefix = f"{name}: " if len(loaders) > 1 else ""
    if comparison.reason is not None:
        text = f"{prefix}{switch['source']} → {switch['target']}: {comparison.reason}"
        return _strip(switch, text + _replayed(switch))
    text = prefix + _text(before, after) + _replayed(switch)
    back = None
    share = _share(comparison)
    if share < SLOWER:
        text += f" · {switch['target']} runs at {share:.2f} of {switch['source']}'s speed here: switch back"
        if state is not None and _offers(state, switch):
            back = switch["source"]
    return _strip(switch, text, _rows(before, after), back)


def _strip(switch: Event, text: str, rows: Sequence[StripRow] = (), back: str | None = None) -> Strip:
    return {
        "loader": switch["loader"],
        "source": switch["source"],
        "target": switch["target"],
        "text": text,
        "rows": list(rows),
        "back": back,
    }


def _share(comparison: Comparison) -> float:
    """Speed after the switch over that before; NaN where one of them is of replayed batches or not known."""
    if REPLAYS in (comparison.switch["source"], comparison.switch["target"]) or not comparison.before.rate > 0:
        return math.nan
    return comparison.after.rate / comparison.before.rate


def _offers(state: Mapping[str, Any], switch: Event) -> bool:
    """Whether the way back is open: the engine is still the one switched to, and the one before it can be used."""
    usable = any(engine["name"] == switch["source"] and engine["available"] for engine in state.get("backends") or ())
    return usable and state["backend"] == switch["target"] and state.get("wanted") in (None, switch["target"])


def _replayed(switch: Event) -> str:
    """A note on the side whose figures are of replayed batches."""
    for side, name in (("after", "target"), ("before", "source")):
        if switch[name] == REPLAYS:
            return f" · the figures {side} the switch are of replayed batches"
    return ""


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
