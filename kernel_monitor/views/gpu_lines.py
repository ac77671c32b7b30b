"""GPUs as lines: clocks, temperature, and what goes over PCIe and NVLink. One colour per GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.charts import chart_series, missing_reason
from .curves import LOW, Curve, curve_color, curves, key
from .gpu import Metric, metric_rows
from .heatmap import heatmap
from .style import NEUTRAL, heading, quiet

if TYPE_CHECKING:
    from bokeh.models.ui import UIElement

    from ..store import Schema
    from .style import Page


def gpu_clocks(schema: Schema, page: Page) -> list[UIElement]:
    """SM clock (MHz), temperature (°C), and when a clock was held down for power, heat or a fault."""
    title = "SM clock, MHz"
    if not chart_series(schema, "gpu-clocks"):
        return [quiet("gpu-clocks", title, missing_reason(schema, "gpu-clocks"))] if schema.series else []
    clocks = _lines(schema, "clock_sm", "MHz")
    heat = _lines(schema, "temperature", "°C")
    rows = metric_rows(schema, Metric("throttled", "throttled", "thrott."))
    parts: list[UIElement] = []
    if clocks:
        parts += [heading("gpu-clocks", title), *_legend(schema, "gpu-clocks")]
        parts.append(curves(page, name="gpu-clocks", lines=clocks, height=LOW, axis=not heat and not rows))
    if heat:
        parts += [heading("gpu-heat", "GPU temperature, °C"), *([] if clocks else _legend(schema, "gpu-heat"))]
        parts.append(curves(page, name="gpu-heat", lines=heat, height=LOW, axis=not rows))
    if rows:
        parts.append(heading("gpu-throttled", "GPU throttled, % of the time", "power cap, heat or hardware slowdown"))
        parts.append(heatmap(page, name="gpu-throttled", rows=rows, pixels=14 if len(rows) <= 4 else 8, from_top=True))
    return parts


def gpu_bus(schema: Schema, page: Page) -> list[UIElement]:
    """What each GPU receives and sends over PCIe and over NVLink, in bytes per second."""
    if not chart_series(schema, "gpu-bus"):
        title = "PCIe and NVLink, bytes per second"
        return [quiet("gpu-bus", title, missing_reason(schema, "gpu-bus"))] if schema.series else []
    parts: list[UIElement] = []
    found = [
        (name, word, [*_lines(schema, f"{name}_received", "B/s"), *_lines(schema, f"{name}_sent", "B/s", "dotted")])
        for name, word in (("pcie", "PCIe"), ("nvlink", "NVLink"))
    ]
    shown = [one for one in found if one[2]]
    for name, word, lines in shown:
        parts.append(heading(f"gpu-{name}", f"{word}, bytes per second"))
        if name == shown[0][0]:
            strokes = [("received", NEUTRAL, "solid"), ("sent", NEUTRAL, "dotted")]
            parts.append(key("gpu-bus-legend", [*_entries(schema), *strokes]))
        parts.append(curves(page, name=f"gpu-{name}", lines=lines, height=LOW, axis=name == shown[-1][0]))
    return parts


def _lines(schema: Schema, part: str, unit: str, dash: str = "solid") -> list[Curve]:
    word = {"received": ", received", "sent": ", sent"}.get(part.rpartition("_")[2], "")
    return [
        Curve(f"gpu/{gpu.index}/{part}", f"GPU {gpu.index}{word}", unit, curve_color(k), dash)
        for k, gpu in enumerate(schema.gpus)
        if f"gpu/{gpu.index}/{part}" in schema.columns
    ]


def _entries(schema: Schema) -> list[tuple[str, str, str]]:
    return [(f"GPU {gpu.index}", curve_color(k), "solid") for k, gpu in enumerate(schema.gpus)]


def _legend(schema: Schema, name: str) -> list[UIElement]:
    return [key(f"{name}-legend", _entries(schema))] if len(schema.gpus) > 1 else []
