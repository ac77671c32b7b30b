"""The strip: one line that says what the last switch changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .switches import REPLAYS, Comparison, Event, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .measured import Floats, Measured
    from .table import Table

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
    head = {"loader": switch["loader"], "source": switch["source"], "target": switch["target"]}
    if comparison.reason is not None:
        text = f"{prefix}{switch['source']} → {switch['target']}: {comparison.reason}"
        return {**head, "text": text + _replayed(switch), "rows": []}
    return {**head, "text": prefix + _text(comparison) + _replayed(switch), "rows": _rows(comparison)}


def _replayed(switch: Event) -> str:
    """Which figures are no loader's."""
    for side, name in (("after", "target"), ("before", "source")):
        if switch[name] == REPLAYS:
            return f" · the figures {side} the switch are of replayed batches"
    return ""


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for label, unit, pick in (
        ("CPU p95", "%", lambda side: _percentile(side.cpu, 95)),
        ("GPU p50", "%", lambda side: _percentile(side.gpu, 50)),
        ("images/s", "images/s", lambda side: side.rate),
        ("data wait per step", "ms", lambda side: side.mean_wait),
        ("samples", "samples", lambda side: side.samples),
        ("counted over", "s", lambda side: side.seconds),
    ):
        before, after = pick(comparison.before), pick(comparison.after)
        if np.isfinite(before) and np.isfinite(after):
            rows.append({"label": label, "unit": unit, "before": round(before, 2), "after": round(after, 2)})
    return rows


def _text(comparison: Comparison) -> str:
    before, after = comparison.before, comparison.after
    parts = []
    if len(before.cpu) and len(after.cpu):
        parts.append(f"CPU p95 {_percentile(before.cpu, 95):.0f} % → {_percentile(after.cpu, 95):.0f} %")
    if len(before.gpu) and len(after.gpu):
        parts.append(f"GPU p50 {_percentile(before.gpu, 50):.0f} % → {_percentile(after.gpu, 50):.0f} %")
    parts.append(
        f"{before.rate:,.0f} → {after.rate:,.0f} images/s ({_count(before)} → {_count(after)})",
    )
    parts.append(f"data wait {_ms(before)} → {_ms(after)} ms per step")
    return " · ".join(parts)


def _count(side: Measured) -> str:
    return f"{side.samples:,.0f} in {side.seconds:.0f}{NBSP}s"


def _ms(side: Measured) -> str:
    return f"{side.mean_wait:.0f}" if side.mean_wait >= 10 else f"{side.mean_wait:.1f}"


def _percentile(values: Floats, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")
