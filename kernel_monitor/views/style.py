"""The common style of all charts: figure, headings, time axis, tools, and the switches and marks over them.

Backgrounds are transparent and the neutral colours are legible on white and on black, so that a chart is readable
before a page has given it the colours of its theme. Texts that may hold a user's words are ``PlainText``:
Bokeh takes ``$$…$$`` in a plain string for TeX and then loads MathJax from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from bokeh.core.properties import value
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    DatetimeTicker,
    DatetimeTickFormatter,
    HoverTool,
    NoOverlap,
    PanTool,
    Range1d,
    Text,
    VSpan,
    VStrip,
    WheelZoomTool,
)
from bokeh.models.dom import Div, Span
from bokeh.models.ui import UIElement
from bokeh.models.ui.panes import Pane
from bokeh.plotting import figure

from ..analysis.segments import REPLAYS
from ..store import Schema
from ..store.charts import missing_reason

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
NEUTRAL = "#7a828e"
GRID = "#8a929e"
INK = "#1f2733"
PAPER = "#fbfbfd"

AXIS_STYLE: dict[str, Any] = {
    "axis_line_color": None,
    "major_tick_line_color": None,
    "minor_tick_line_color": None,
    "major_label_text_color": NEUTRAL,
    "major_label_text_font": FONT,
    "major_label_text_font_size": "10.5px",
}
LEFT, RIGHT = 58, 12  # pixels beside every frame, so that the time axes of all charts stand above each other
TOP, AXIS, BOTTOM = 3, 24, 8
"""Pixels above a figure's frame, of its time axis, and below the frame of a figure without one."""
LANE = "lane"
"""Name of the range, from 0 to 1 over the frame's height, on which a chart without a lane of its own puts labels."""


class Page:
    """The shared parts of the charts of a document.

    Attributes:
        time: the visible span of time (ms since 1970), which pages move; at first the session's first minute.
        markers: the switches and the marks: `time` (ms), `label`, and `place`.
        bands: the times of replayed batches: `left` and `right` (ms), `label`, and `place`.
        interactive: whether a person can pan and zoom (a report) or the feed moves the charts (live).
        top: whether the next chart is the first one, which carries the markers' labels.
        scale: whether a heatmap was drawn, which needs the colour scale.
        ticker, formatter: of every time axis; a `DatetimeTicker` alone is a dozen models.

    A page gives the labels their `place` (ms; NaN where there is no room), because only it knows their width.
    """

    def __init__(self, schema: Schema, *, interactive: bool) -> None:
        start = schema.origin * 1000
        self.time = Range1d(start=start, end=start + 60_000, name="time")
        self.markers = ColumnDataSource(
            data={"time": [], "label": [], "place": []},
            name="markers",
            tags=[{"kind": "markers", "events": ["switch", "mark", "job-switch"]}],
        )
        self.bands = ColumnDataSource(
            data={"left": [], "right": [], "label": [], "place": []},
            name="bands",
            tags=[{"kind": "bands", "backend": REPLAYS}],
        )
        self.interactive = interactive
        self.top = True
        self.scale = False
        self.ticker = DatetimeTicker(desired_num_ticks=7, num_minor_ticks=0)
        self.formatter = DatetimeTickFormatter(
            milliseconds="%H:%M:%S.%3N",
            seconds="%H:%M:%S",
            minsec="%H:%M:%S",
            minutes="%H:%M",
            hourmin="%H:%M",
            hours="%H:%M",
            days="%d %b",
            boundary_scaling=False,
        )


Chart = Callable[[Schema, Page], list[UIElement]]
"""A chart: returns its heading, its legend and its figures, or nothing at all."""


def heading(name: str, title: str, note: str | None = None) -> Pane:
    """Return the heading of a chart: its title with the unit, and a note; without a title the note alone, a quiet line.

    As DOM: it wraps in a narrow sidebar, is read by assistive technology, and is not painted again with every frame.
    """
    words: list[Any] = [Span(children=[title], style={"font-weight": "600"})] if title else []
    if note:
        words.append(Span(children=[f" · {note}" if title else note], style={"opacity": "0.75"}))
    style = {
        "padding": f"5px {RIGHT if title else 0}px 0 {LEFT}px",
        "font": f"{'12' if title else '10.5'}px/1.35 {FONT}",
        "color": "inherit",
        "overflow-wrap": "anywhere",
    }
    return Pane(elements=[Div(children=words, style=style)], name=f"{name}-title")


def missing(schema: Schema, chart: str, title: str) -> list[UIElement]:
    """Return a chart without series: its title and, in one line, the reason; nothing before the first hello."""
    return [heading(chart, title, missing_reason(schema, chart))] if schema.series else []


def new_figure(page: Page, name: str, inner_height: int, y_range: Range1d | DataRange1d) -> figure:
    """Return a figure in the common style, without data and time axis; its frame is `inner_height` pixels high."""
    p = figure(
        name=name,
        height=inner_height + TOP + BOTTOM,
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        x_range=page.time,
        y_range=y_range,
        toolbar_location=None,
        # The wheel scrolls the page; with Ctrl it zooms.
        tools=[PanTool(dimensions="width"), WheelZoomTool(dimensions="width", modifiers="ctrl")]
        if page.interactive
        else [],
        min_border_left=LEFT,
        min_border_right=RIGHT,
        min_border_top=TOP,
        min_border_bottom=BOTTOM,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    p.toolbar.logo = None
    p.title = None
    for axis in (*p.xaxis, *p.yaxis):
        axis.update(**AXIS_STYLE, major_label_standoff=5, major_label_policy=NoOverlap(min_distance=6))
    p.xaxis.visible = False
    p.xaxis.ticker = page.ticker
    p.xaxis.formatter = page.formatter
    p.xgrid.grid_line_color = None
    p.ygrid.grid_line_color = GRID
    p.ygrid.grid_line_alpha = 0.22
    return p


def show_time(parts: Sequence[UIElement]) -> None:
    """Give the last figure among these parts a time axis, which stands for all: they have the same range and edges."""
    for p in [part for part in parts if isinstance(part, figure)][-1:]:
        p.xaxis.visible = True
        p.height = (p.height or 0) - BOTTOM + AXIS
        p.min_border_bottom = 0


def hover(renderers: Sequence[Any], tooltips: list[tuple[str, str]], tag: dict[str, Any], **options: Any) -> HoverTool:
    """Return a hover tool with plain tooltips, which a page replaces by better ones according to `tag`."""
    return HoverTool(renderers=list(renderers), tooltips=tooltips, tags=[tag], visible=False, **options)


def add_marks(page: Page, p: figure, *, over: bool = False, labels: bool = False, label_y: float | None = None) -> None:
    """Draw the replayed times as hatched bands, and the switches and marks as dark dashed lines on light ones.

    Both are legible on any colour of cell or page. Called after everything else is drawn: the lines are glyphs, which
    are cut at the frame (annotations are not, and a switch that has left the window would stand beside the axis).

    Args:
        over: draw the bands over the chart's glyphs (cells leave no space), not under them.
        labels: whether the bands are named here, at the top of the frame.
        label_y: where the markers' labels stand, in the figure's y units; None for a chart without labels.
    """
    page.top = False
    strips = VStrip(
        x0="left",
        x1="right",
        fill_color=GRID,
        fill_alpha=0.2,
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color=GRID,
        hatch_alpha=0.6 if over else 0.35,
        hatch_scale=9,
    )
    p.add_glyph(page.bands, strips, level="glyph" if over else "underlay", name="band-strips")
    if labels:
        p.extra_y_ranges = {**p.extra_y_ranges, LANE: Range1d(start=0, end=1)}
        label = _label(y=0.9, align="left", offset=5)
        p.add_glyph(page.bands, label, level="annotation", y_range_name=LANE, name="band-labels")
    for line in (
        VSpan(x="time", line_color=PAPER, line_width=3, line_alpha=0.55),
        VSpan(x="time", line_color=INK, line_width=1.5, line_dash=[5, 3]),
    ):
        p.add_glyph(page.markers, line, level="glyph")
    if label_y is not None:
        label = _label(y=label_y, align="right", offset=-5)
        p.add_glyph(page.markers, label, level="annotation", name="marker-labels")


def _label(*, y: float, align: Literal["left", "right"], offset: int) -> Text:
    label = Text(
        x="place",
        y=value(y),
        text="label",
        x_offset=value(offset),
        text_align=value(align),
        text_baseline=value("middle"),
        text_font=value(FONT),
        text_font_size=value("10.5px"),
        text_color=INK,
        background_fill_color=PAPER,
        background_fill_alpha=0.94,
        border_line_color=GRID,
        border_line_alpha=0.6,
    )
    # The stubs of Bokeh 3.9 refuse what its documentation allows here.
    label.update(border_radius=4, padding=(5, 1))
    return label
