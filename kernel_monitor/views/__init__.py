"""The charts. Each is one function that returns a Bokeh figure over named sources and holds no data.

A new chart is a function and a line in :data:`CHARTS`: it then appears in the cell, the sidebar and the report.
Bokeh is never imported in a process that trains; `python -m kernel_monitor.views` makes a document elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bokeh.embed import json_item
from bokeh.layouts import column

from ..store import Schema
from .cpu import cpu
from .gpu import gpu
from .heatmap import color_scale
from .loaders import images, legend, wait
from .style import Page, new_page

if TYPE_CHECKING:
    from bokeh.models import Column
    from bokeh.models.ui import UIElement
    from bokeh.plotting import figure

Chart = Callable[[Schema, Page], "figure | None"]
CHARTS: list[Chart] = [cpu, gpu, images, wait]
"""From top to bottom. A chart that has nothing to show for a schema returns None."""


def layout(schema: Schema, *, interactive: bool = False) -> Column:
    """All charts above each other over one `Range1d` named `time`.

    Args:
        schema: what is measured.
        interactive: with tools to pan and zoom, for a page that no feed moves.
    """
    page = new_page(schema, interactive=interactive)
    parts: list[UIElement] = [color_scale()]
    for chart in CHARTS:
        key = legend(schema) if chart is images else None
        parts += [part for part in (key, chart(schema, page)) if part is not None]
    return column(*parts, sizing_mode="stretch_width", spacing=6, name="charts")


def document(schema: Schema) -> dict[str, Any]:
    """The live document: what BokehJS's `embed_item` takes, JSON-able."""
    return dict(json_item(layout(schema)))


__all__ = ["CHARTS", "Chart", "document", "layout"]
