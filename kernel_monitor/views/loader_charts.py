"""The loaders: images per second, waits and steps, and the phases of the steps."""

from __future__ import annotations

from bokeh.models.ui import UIElement

from ..store import Schema
from ..store.schema import PHASE_SERIES
from .curves import SECONDS, Curve, chart, curve_color, curves, key
from .style import NEUTRAL, Page, heading, missing

PHASE_STROKES = {"copy": "dotted", "forward": "solid", "backward": "dashed", "optimizer": "solid", "other": "dotted"}


def images(schema: Schema, page: Page) -> list[UIElement]:
    """Images per second that each loader delivers; nothing without a loader.

    With several loaders, the key to all their colours and strokes stands here, once for both charts.
    """
    if not schema.loaders:
        return []
    lines = [
        Curve(f"loader/{loader.id}/images", _label(schema, k, ""), "images/s", curve_color(k))
        for k, loader in enumerate(schema.loaders)
    ]
    parts: list[UIElement] = [heading("images", f"Images/s, mean of {SECONDS:g} s")]
    if len(schema.loaders) > 1:
        entries = [(loader.name, curve_color(k), "solid") for k, loader in enumerate(schema.loaders)]
        strokes = [("waiting for data", NEUTRAL, "solid"), ("whole step", NEUTRAL, "dotted")]
        parts.append(key("legend", [*entries, *strokes]))
    return [*parts, curves(page, "images", lines, means=True)]


def wait(schema: Schema, page: Page) -> list[UIElement]:
    """How long a step waits for its data, and how long the whole step takes, in ms; nothing without a loader."""
    lines = []
    for k, loader in enumerate(schema.loaders):
        series, color = f"loader/{loader.id}", curve_color(k)
        lines.append(Curve(f"{series}/wait", _label(schema, k, "waiting for data"), "ms", color))
        lines.append(Curve(f"{series}/step", _label(schema, k, "whole step"), "ms", color, "dotted"))
    entries = None if len(schema.loaders) == 1 else ()
    return chart(page, "wait", "Time per training step, ms", lines, entries=entries, means=True)


def phases(schema: Schema, page: Page) -> list[UIElement]:
    """The phases of the steps besides the wait for data, in ms; a figure for each loader whose phases are measured.

    Lines and not areas above each other: an area has no way to leave a gap open.
    """
    title = "Phases of a step, ms"
    phased = [loader for loader in schema.loaders if f"loader/{loader.id}/other" in schema.columns]
    parts: list[UIElement] = []
    for loader in phased:
        name = "phases" if len(phased) == 1 else f"phases-{loader.id}"
        lines = [
            Curve(f"loader/{loader.id}/{phase}", phase, "ms", curve_color(k), PHASE_STROKES[phase])
            for k, (phase, _) in enumerate(PHASE_SERIES)
        ]
        note = loader.name if len(schema.loaders) > 1 else None
        parts += chart(page, name, f"{title}, mean of {SECONDS:g} s", lines, note=note, means=True)
    return parts or missing(schema, "phases", title)


def _label(schema: Schema, k: int, what: str) -> str:
    """`train: whole step` where there are several loaders, else `whole step`."""
    name = schema.loaders[k].name if len(schema.loaders) > 1 else ""
    return f"{name}: {what}" if name and what else name or what
