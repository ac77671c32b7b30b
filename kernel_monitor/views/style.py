"""The common style of all charts: figure, headings, time axis, tools.

Backgrounds are transparent and the neutral colours are legible on white and on black, so that a chart is readable
before a page has given it the colours of its theme. Texts that may hold a user's words are ``PlainText``:
Bokeh takes ``$$…$$`` in a plain string for TeX and then loads MathJax from the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    DatetimeTicker,
    DatetimeTickFormatter,
    HoverTool,
    NoOverlap,
    PanTool,
    PlainText,
    Range1d,
    WheelZoomTool,
)
from bokeh.models.dom import Div, Span
from bokeh.models.ui.panes import Pane
from bokeh.plotting import figure

from ..store.charts import missing_reason
from .markers import FONT, GRID, new_bands, new_markers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models.ui import UIElement

    from ..store import Schema

NEUTRAL = "#7a828e"

LEFT, RIGHT = 58, 12  # pixels beside every frame, so that the time axes of all charts stand above each other
TOP, AXIS, BOTTOM = 3, 24, 8
"""Pixels above a figure's frame, of its time axis, and below the frame of a figure without one."""


def _clock() -> DatetimeTickFormatter:
    return DatetimeTickFormatter(
        milliseconds="%H:%M:%S.%3N",
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M",
        hourmin="%H:%M",
        hours="%H:%M",
        days="%d %b",
        boundary_scaling=False,
    )


@dataclass
class Page:
    """The shared parts of the charts of a document.

    Attributes:
        ticker, formatter: of every time axis; a `DatetimeTicker` alone is a dozen models.
    """

    time: Range1d  # the visible span of time, in ms since 1970; pages and reports move this one range
    markers: ColumnDataSource  # the switches and marks, see `marks`
    bands: ColumnDataSource  # the times of replayed batches, see `marks`
    interactive: bool = False  # whether a person can pan and zoom (a report) or the feed moves the charts (live)
    top: bool = True  # whether the next chart is the first one, which carries the markers' labels
    scale: bool = False  # whether a heatmap was drawn, which needs the colour scale
    ticker: DatetimeTicker = field(default_factory=lambda: DatetimeTicker(desired_num_ticks=7, num_minor_ticks=0))
    formatter: DatetimeTickFormatter = field(default_factory=_clock)
    figures: list[figure] = field(default_factory=list)


def new_page(schema: Schema, *, interactive: bool) -> Page:
    """The shared parts of a new document; the range starts with the session's first minute."""
    start = schema.origin * 1000
    time = Range1d(start=start, end=start + 60_000, name="time")
    return Page(time=time, markers=new_markers(), bands=new_bands(), interactive=interactive)


def heading(name: str, title: str, note: str | None = None) -> Pane:
    """The heading of a chart: its title with the unit, and a note.

    As DOM: it wraps in a narrow sidebar, is read by assistive technology, and is not painted again with every frame.
    """
    words: list[Any] = [Span(children=[title], style={"font-weight": "600"})]
    if note:
        words.append(Span(children=[f" · {note}"], style={"opacity": "0.75"}))
    style = {
        "padding": f"5px {RIGHT}px 0 {LEFT}px",
        "font": f"12px/1.35 {FONT}",
        "color": "inherit",
        "overflow-wrap": "anywhere",
    }
    return Pane(elements=[Div(children=words, style=style)], name=f"{name}-title")


def missing(schema: Schema, chart: str, title: str) -> list[UIElement]:
    """A chart without series: its title and, in one line, the reason; nothing before the first hello."""
    return [heading(chart, title, missing_reason(schema, chart))] if schema.series else []


def plain(text: str) -> PlainText:
    """`text` without any markup."""
    return PlainText(text=text)


def new_figure(
    page: Page,
    *,
    name: str,
    inner_height: int,
    y_range: Range1d | DataRange1d,
    axis: bool = True,
) -> figure:
    """A figure without data in the common style.

    Args:
        name: the model's name, by which a page finds it.
        inner_height: pixels of the plotting area.
        y_range: the range of the y axis.
        axis: whether the chart shows the time axis.
    """
    p = figure(
        name=name,
        height=inner_height + TOP + (AXIS if axis else BOTTOM),
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        x_range=page.time,
        y_range=y_range,
        toolbar_location=None,
        tools=_tools(page),
        min_border_left=LEFT,
        min_border_right=RIGHT,
        min_border_top=TOP,
        min_border_bottom=0 if axis else BOTTOM,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    p.toolbar.logo = None
    p.title = None
    for axis_model in (*p.xaxis, *p.yaxis):
        axis_model.axis_line_color = None
        axis_model.major_tick_line_color = None
        axis_model.minor_tick_line_color = None
        axis_model.major_label_text_color = NEUTRAL
        axis_model.major_label_text_font = FONT
        axis_model.major_label_text_font_size = "10.5px"
        axis_model.major_label_standoff = 5
        axis_model.major_label_policy = NoOverlap(min_distance=6)
    p.xaxis.visible = axis
    p.xaxis.ticker = page.ticker
    p.xaxis.formatter = page.formatter
    p.xgrid.grid_line_color = None
    p.ygrid.grid_line_color = GRID
    p.ygrid.grid_line_alpha = 0.22
    page.figures.append(p)
    return p


def share_axis(page: Page) -> None:
    """Let the last figure's time axis stand for all: they have the same range and the same edges."""
    for p in page.figures[:-1]:
        if p.xaxis[0].visible:
            p.xaxis.visible = False
            p.height = (p.height or 0) - AXIS + BOTTOM
            p.min_border_bottom = BOTTOM
    for p in page.figures[-1:]:
        if not p.xaxis[0].visible:
            p.xaxis.visible = True
            p.height = (p.height or 0) - BOTTOM + AXIS
            p.min_border_bottom = 0


def hover(renderers: Sequence[Any], tooltips: list[tuple[str, str]], tag: dict[str, Any], **options: Any) -> HoverTool:
    """A hover tool with plain tooltips, which a page replaces by better ones according to `tag`."""
    return HoverTool(renderers=list(renderers), tooltips=tooltips, tags=[tag], visible=False, **options)


def _tools(page: Page) -> list[Any]:
    if not page.interactive:
        return []
    # The wheel scrolls the page; with Ctrl it zooms.
    return [PanTool(dimensions="width"), WheelZoomTool(dimensions="width", modifiers="ctrl")]
