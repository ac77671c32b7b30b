"""The charts: each is a function that returns a heading and Bokeh figures over named sources, without data.

docs/architecture.md says how a chart is added.
Bokeh is never imported in a process that trains; `python -m kernel_monitor.views` makes a document elsewhere.

Internal: no part of the public interface.
"""

from __future__ import annotations

from typing import Any

from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import Column, ColumnDataSource

from ..store import Schema, charts
from ..store.charts import DEFAULT_CHARTS, Kind
from . import hardware_charts, loader_charts
from .heatmap import color_scale
from .style import Chart, Page, show_time

_DRAWN: dict[str, Chart] = {**hardware_charts.CHARTS, **loader_charts.CHARTS}
CHARTS: dict[str, Chart] = {chart.id: _DRAWN[chart.id] for chart in charts.CHARTS}
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
    drawn = layout(schema, kind)
    tags: list[Any] = [model.tags[0] for model in drawn.references() if isinstance(model, ColumnDataSource)]
    exact = {name for tag in tags if tag.get("scale") for name in tag["rows"]}
    lines = sorted(exact.union(*(tag.get("columns", {}).values() for tag in tags)))
    return {**json_item(drawn), "lines": lines}
