"""Markers over every chart: switches and marks as dashed lines, and the times of replayed batches as hatched bands.

Both are legible on any colour of cell or page. A page places the labels, because only it knows their width (`place`,
in ms since 1970, NaN where there is no room).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, Range1d, Text, VSpan, VStrip

from ..analysis.switches import REPLAYS

if TYPE_CHECKING:
    from bokeh.plotting import figure

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
GRID = "#8a929e"
INK = "#1f2733"
PAPER = "#fbfbfd"
LANE = "lane"
"""Name of the range, from 0 to 1 over the frame's height, on which a chart without a lane of its own puts labels."""


def new_markers() -> ColumnDataSource:
    """The switches and the marks: `time` (ms), `label`, and `place`."""
    return ColumnDataSource(
        data={"time": [], "label": [], "place": []},
        name="markers",
        tags=[{"kind": "markers", "events": ["switch", "mark"]}],
    )


def new_bands() -> ColumnDataSource:
    """The segments in which replayed batches were delivered: `left` and `right` (ms), `label`, and `place`."""
    return ColumnDataSource(
        data={"left": [], "right": [], "label": [], "place": []},
        name="bands",
        tags=[{"kind": "bands", "backend": REPLAYS}],
    )


def add_bands(bands: ColumnDataSource, p: figure, *, over: bool, labels: bool = False) -> None:
    """Draw the bands over the chart.

    Args:
        over: over the chart's glyphs (cells leave no space), not under them.
        labels: whether the bands are named here, at the top of the frame.
    """
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
    p.add_glyph(bands, strips, level="glyph" if over else "underlay", name="band-strips")
    if labels:
        p.extra_y_ranges = {**p.extra_y_ranges, LANE: Range1d(start=0, end=1)}
        label = _label(y=0.9, align="left", offset=5)
        p.add_glyph(bands, label, level="annotation", y_range_name=LANE, name="band-labels")


def add_markers(markers: ColumnDataSource, p: figure, *, label_y: float | None = None) -> None:
    """Draw the markers over the chart: a dark dashed line on a light one.

    Called after everything else is drawn: the lines are glyphs, which are cut at the frame (annotations are not, and a
    switch that has left the window would stand beside the axis).

    Args:
        label_y: where the labels stand, in the figure's y units; None for a chart without labels.
    """
    for line in (
        VSpan(x="time", line_color=PAPER, line_width=3, line_alpha=0.55),
        VSpan(x="time", line_color=INK, line_width=1.5, line_dash=[5, 3]),
    ):
        p.add_glyph(markers, line, level="glyph")
    if label_y is not None:
        label = _label(y=label_y, align="right", offset=-5)
        p.add_glyph(markers, label, level="annotation", name="marker-labels")


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
