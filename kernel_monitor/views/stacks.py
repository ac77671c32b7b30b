"""Panels of areas above each other, over one scale: what the parts of a whole take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.core.properties import value
from bokeh.models import BasicTicker, ColumnDataSource, DataRange1d, Line, NumeralTickFormatter, VArea
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.ui import UIElement

from .curves import LOW, curve_color, key
from .style import Page, add_marks, heading, hover, new_figure

PHASES = ("copy", "forward", "backward", "optimizer", "other", "wait")
"""In the order of their colours, which are those of the chart `phases`."""
Panel = tuple[str, str, Sequence[tuple[str, str]]]
"""Its name, its title, and from the lowest up the series of each part and what it is called."""


def stacks(page: Page, name: str, title: str, panels: Sequence[Panel], rank: str = "rank") -> list[UIElement]:
    """A heading, a legend, and a figure without data for each panel.

    The source of a panel is called `<name>-stack`. The page adds up the parts, and lets the areas end at the ground
    where there is no value: an area has no other way to leave a gap open. `rank`: the last part of the name of a
    series beside the parts' that the hover shows first.
    """
    parts = panels[0][2]
    entries = [(label, curve_color(PHASES.index(label)), "solid") for _, label in parts]
    found: list[UIElement] = [heading(name, title), key(f"{name}-legend", entries)]
    scale = DataRange1d(start=0, range_padding=0.12, default_span=1)
    tops: list[GlyphRenderer[Any]] = []
    for panel, label, series in panels:
        p = new_figure(page, panel, LOW, scale)
        p.window_axis = "x"
        p.yaxis.formatter = NumeralTickFormatter(format="0,0")
        p.yaxis.ticker = BasicTicker(desired_num_ticks=3, num_minor_ticks=0)
        columns = {f"y{k}": one for k, (one, _) in enumerate(series)}
        beside = f"{series[0][0].rpartition('/')[0]}/{rank}"
        source = ColumnDataSource(
            data={"time": [], **{column: [] for column in (*columns, "beside")}},
            name=f"{panel}-stack",
            tags=[{"kind": "stack", "columns": {**columns, "beside": beside}, "stacked": list(columns)}],
        )
        under: Any = value(0)
        for column, (_, part) in zip(columns, series, strict=True):
            color = curve_color(PHASES.index(part))
            p.add_glyph(source, VArea(x="time", y1=under, y2=column, fill_color=color, fill_alpha=0.75))
            under = column
        tops.append(p.add_glyph(source, Line(x="time", y=under, line_color=None)))
        labels = [part for _, part in series]
        tag = {"kind": "hover-stack", "label": label, "columns": list(columns), "values": labels, "unit": "ms"}
        p.add_tools(hover([tops[-1]], [(label, f"@{under}{{0,0.0}} ms")], tag, mode="vline", line_policy="nearest"))
        add_marks(page, p)
        found += [heading(panel, label[0].upper() + label[1:]), p]
    scale.update(renderers=tops)
    return found
