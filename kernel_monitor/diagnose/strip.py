"""The strip: one line that says what the last switch changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .switches import REPLAYS, Comparison, Event, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .measured import Floats, Measured
    from .table import Table

SLOWER = 0.9
"""With less than this share of the images/s of before, a switch is called slower."""
NBSP = "\N{NO-BREAK SPACE}"
"""Keeps a figure and its unit on one line of a narrow sidebar."""


def strip(table: Table, events: Sequence[Event], loaders: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the last switch changed, as `Strip` of `docs/architecture.md`.

    Args:
        table: rows, oldest first.
        events: the store's events.
        loaders: the loaders' states; where there are several the text names the one that switched.

    Returns:
        None before the first switch. `rows` is empty, and `text` says why, while there is too little to compare.
    """
    comparison = compare(table, events)
    if comparison is None:
        return None
    switch = comparison.switch
    name = next((str(state["name"]) for state in loaders if state["id"] == switch["loader"]), str(switch["loader"]))
    prefix = f"{name}: " if len(loaders) > 1 else ""
    head = {"loader": switch["loader"], "source": switch["source"], "target": switch["target"], "back": None}
    if comparison.reason is not None:
        text = f"{prefix}{switch['source']} → {switch['target']}: {comparison.reason}"
        return {**head, "text": text + _replayed(switch), "rows": []}
    text = prefix + _text(comparison) + _replayed(switch)
    share = _share(comparison)
    if share < SLOWER:
        text += f" · {switch['target']} runs at {share:.2f} of {switch['source']}'s speed here: switch back"
        state = next((state for state in loaders if state["id"] == switch["loader"]), None)
        if state is not None and _offers(state, switch):
            head["back"] = switch["source"]
    return {**head, "text": text, "rows": _rows(comparison)}


def _share(comparison: Comparison) -> float:
    """Speed after the switch over that before; NaN where one of them is no loader's or not known."""
    if REPLAYS in (comparison.switch["source"], comparison.switch["target"]) or not comparison.before.rate > 0:
        return float("nan")
    return comparison.after.rate / comparison.before.rate


def _offers(state: Mapping[str, Any], switch: Event) -> bool:
    """Whether the way back is open: the engine is still the one switched to, and the one before it can be used."""
    usable = any(one["name"] == switch["source"] and one["available"] for one in state.get("backends") or ())
    return usable and state["backend"] == switch["target"] and state.get("wanted") in (None, switch["target"])


def _replayed(switch: Event) -> str:
    """Which figures are no loader's."""
    for side, name in (("after", "target"), ("before", "source")):
        if switch[name] == REPLAYS:
            return f" · the figures {side} the switch are of replayed batches"
    return ""


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for label, unit, pick in (
        ("images/s", "images/s", lambda side: side.rate),
        ("data wait per step", "ms", lambda side: side.mean_wait),
        ("GPU p50", "%", lambda side: _percentile(side.gpu, 50)),
        ("CPU p95", "%", lambda side: _percentile(side.cpu, 95)),
        ("samples", "samples", lambda side: side.samples),
        ("counted over", "s", lambda side: side.seconds),
    ):
        before, after = pick(comparison.before), pick(comparison.after)
        if np.isfinite(before) and np.isfinite(after):
            rows.append({"label": label, "unit": unit, "before": round(before, 2), "after": round(after, 2)})
    return rows


def _text(comparison: Comparison) -> str:
    before, after = comparison.before, comparison.after
    # What was gained comes first: where there is little room, it alone is seen.
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
    return float(np.percentile(values, q)) if len(values) else float("nan")
