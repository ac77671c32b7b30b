"""How every chart looks: one quiet figure, one palette, one time axis.

Backgrounds are transparent and the neutral colours are legible on white and on black, so that a chart is readable
before a page has given it the colours of its theme. Texts that may hold somebody else's words are ``PlainText``:
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
from bokeh.models.annotations import Title
from bokeh.models.text import BaseText
from bokeh.plotting import figure

from .marks import FONT, GRID, new_bands, new_markers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import Schema

NEUTRAL = "#7a828e"
# Distinct in hue and lightness for the common kinds of colour blindness, and on white as on black.
LOADER_COLORS = ("#2f7fe0", "#e0791f", "#1f9e77", "#b45fc8", "#c9a000", "#d1495b")

LEFT, RIGHT = 58, 12
"""Pixels beside every frame, so that the time axes of all charts stand above each other."""
TITLE, AXIS = 24, 24
"""Pixels of a figure's title and of its time axis."""


@dataclass
class Page:
    """What the charts of one document share.

    Attributes:
        time: the visible span of time, in ms since 1970; pages and reports move this one range.
        markers: the switches, see `marks`.
        bands: the times of replayed batches, see `marks`.
        interactive: whether a person can pan and zoom (a report) or the feed moves the charts (live).
        top: whether the next chart is the first one, which carries the markers' labels.
    """

    time: Range1d
    markers: ColumnDataSource
    bands: ColumnDataSource
    interactive: bool = False
    top: bool = True
    figures: list[figure] = field(default_factory=list)


def new_page(schema: Schema, *, interactive: bool) -> Page:
    """The shared parts of a new document; the range starts with the session's first minute."""
    start = schema.origin * 1000
    time = Range1d(start=start, end=start + 60_000, name="time")
    return Page(time=time, markers=new_markers(), bands=new_bands(), interactive=interactive)


def plain(text: str) -> PlainText:
    """`text` as it stands, whatever it holds."""
    return PlainText(text=text)


def new_figure(
    page: Page,
    *,
    name: str,
    title: str,
    inner_height: int,
    y_range: Range1d | DataRange1d,
    above: int = 0,
    axis: bool = True,
) -> figure:
    """A figure without data in the house style.

    Args:
        name: the model's name, by which a page finds it.
        title: what is shown, with its unit.
        inner_height: pixels of the plotting area.
        y_range: the range of the y axis.
        above: pixels that something in the panel above the frame takes beside the title.
        axis: whether the chart shows the time axis.
    """
    p = figure(
        name=name,
        height=inner_height + TITLE + (AXIS if axis else 4) + above,
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        x_range=page.time,
        y_range=y_range,
        toolbar_location=None,
        tools=_tools(page),
        min_border_left=LEFT,
        min_border_right=RIGHT,
        min_border_top=0,
        min_border_bottom=0,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    p.toolbar.logo = None
    p.title = Title(
        text=plain(title),
        text_font=FONT,
        text_font_size="12px",
        text_font_style="bold",
        text_color=NEUTRAL,
        align="left",
        standoff=6,
    )
    for one in (*p.xaxis, *p.yaxis):
        one.axis_line_color = None
        one.major_tick_line_color = None
        one.minor_tick_line_color = None
        one.major_label_text_color = NEUTRAL
        one.major_label_text_font = FONT
        one.major_label_text_font_size = "10.5px"
        one.major_label_standoff = 5
        one.major_label_policy = NoOverlap(min_distance=6)
    p.xaxis.visible = axis
    p.xaxis.ticker = DatetimeTicker(desired_num_ticks=7, num_minor_ticks=0)
    p.xaxis.formatter = DatetimeTickFormatter(
        milliseconds="%H:%M:%S.%3N",
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M",
        hourmin="%H:%M",
        hours="%H:%M",
        days="%d %b",
        boundary_scaling=False,
    )
    p.xgrid.grid_line_color = None
    p.ygrid.grid_line_color = GRID
    p.ygrid.grid_line_alpha = 0.22
    page.figures.append(p)
    return p


def label_rows(p: figure, labels: Sequence[str], inner_height: int) -> None:
    """Label the rows of a heatmap at their middles; only every 2nd, 4th, 8th… where rows are lower than a label."""
    step = 1
    if inner_height < 14 * len(labels):
        while inner_height * step < 20 * len(labels):
            step *= 2
    shown: dict[float | str, str | BaseText] = {
        row + 0.5: plain(label) for row, label in list(enumerate(labels))[::step]
    }
    p.yaxis.ticker = [float(row) for row in shown]
    p.yaxis.major_label_overrides = shown
    p.yaxis.major_label_policy = NoOverlap(min_distance=1)


def hover(renderers: Sequence[Any], tooltips: list[tuple[str, str]], tag: dict[str, Any], **options: Any) -> HoverTool:
    """A hover tool with plain tooltips, which a page replaces by better ones according to `tag`."""
    return HoverTool(renderers=list(renderers), tooltips=tooltips, tags=[tag], visible=False, **options)


def _tools(page: Page) -> list[Any]:
    if not page.interactive:
        return []
    # The wheel scrolls the page; with Ctrl it zooms.
    return [PanTool(dimensions="width"), WheelZoomTool(dimensions="width", modifiers="ctrl")]
