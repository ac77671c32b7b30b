"""The charts: each is a function that returns a heading and Bokeh figures over named sources, without data.

A new chart is a function, a line in :data:`CHARTS` and a line in `store.charts`; it then appears in the cell, the
sidebar and the report.
Bokeh is never imported in a process that trains; `python -m kernel_monitor.views` makes a document elsewhere.

Internal: no part of the public interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import Column, ColumnDataSource
from bokeh.models.ui import UIElement

from ..store import Schema
from ..store.charts import DEFAULT_CHARTS, Kind
from .hardware_charts import cpu, gpu, gpu_bus, gpu_clocks, gpu_counters, gpu_engines, io, memory, pressure, processes
from .heatmap import color_scale
from .loader_charts import images, nodes, phases, ranks, wait
from .style import Page, show_time

Chart = Callable[[Schema, Page], "list[UIElement]"]
CHARTS: dict[str, Chart] = {
    "cpu": cpu,
    "gpu": gpu,
    "nodes": nodes,
    "ranks": ranks,
    "images": images,
    "wait": wait,
    "phases": phases,
    "processes": processes,
    "memory": memory,
    "io": io,
    "pressure": pressure,
    "gpu-engines": gpu_engines,
    "gpu-counters": gpu_counters,
    "gpu-clocks": gpu_clocks,
    "gpu-bus": gpu_bus,
}
"""The charts of `store.charts.CHARTS`: each gives its heading, its legend and its figures, or nothing at all."""


def layout(schema: Schema, kind: Kind = "live") -> Column:
    """Return charts above each other over one `Range1d` named `time`.

    Args:
        schema: the series to draw and the charts' ids; the default charts where it names none.
        kind: all but "live" have tools to pan and zoom. In a "report" every chart has a time axis of its own, as they
            may stand on several sheets of paper; else the last one has it for all.
    """
    page = Page(schema, interactive=kind != "live")
    drawn = [CHARTS[chart](schema, page) for chart in schema.charts or DEFAULT_CHARTS]
    parts = [part for chart in drawn for part in chart]
    for sharing in drawn if kind == "report" else [parts]:
        show_time(sharing)
    if page.scale:
        parts.insert(0, color_scale())
    return column(*parts, sizing_mode="stretch_width", spacing=3, name="charts")


def document(schema: Schema, kind: Kind = "live") -> dict[str, Any]:
    """Return the document for BokehJS's `embed_item`; JSON-able.

    `lines`: the series whose values must be exact, because they are drawn as lines or on a scale that the page finds;
    the others are colours of a heatmap in %.
    """
    charts = layout(schema, kind)
    tags: list[Any] = [model.tags[0] for model in charts.references() if isinstance(model, ColumnDataSource)]
    exact = {name for tag in tags if tag.get("scale") for name in tag["rows"]}
    lines = sorted(exact.union(*(tag.get("columns", {}).values() for tag in tags)))
    return {**json_item(charts), "lines": lines}
