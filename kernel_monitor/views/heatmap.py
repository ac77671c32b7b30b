"""Heatmaps: rows of whole per cent over time, drawn from a ring of small images.

Each image (a tile) is a stretch of time of all rows, so that a feed patches one tile of a few kilobytes for every
frame, whatever the machine's size. See *Documents* in `docs/architecture.md` for the tag that a feed reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bokeh.models import ColumnDataSource, Image, LinearColorMapper, Range1d
from bokeh.models.dom import Div, Span
from bokeh.models.ui.panes import Pane
from bokeh.palettes import Viridis256

from .marks import FONT, add_bands, add_markers
from .style import RIGHT, Page, hover, label_rows, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.plotting import figure

SLOTS = 60
"""Columns of a tile."""
LANE = 18
"""Pixels above the rows of the first chart, where the markers' labels stand."""


def heatmap(
    page: Page,
    *,
    name: str,
    title: str,
    rows: Sequence[str],
    labels: Sequence[str],
    inner_height: int,
    short: Sequence[str] | None = None,
) -> figure:
    """A heatmap without data.

    Args:
        page: the document that it becomes part of.
        name: of the figure; its source is called `<name>-tiles`.
        title: what is shown, with its unit.
        rows: series in %, the lowest row first.
        labels: what a person calls each row.
        inner_height: pixels of the rows together.
        short: what stands beside the rows, where that is not `labels`.
    """
    count = len(rows)
    lane = LANE if page.top else 0
    y_range = Range1d(start=0, end=count * (1 + lane / inner_height))
    p = new_figure(page, name=name, title=title, inner_height=inner_height + lane, y_range=y_range)
    source = ColumnDataSource(
        data={"image": [], "x": [], "y": [], "dw": [], "dh": []},
        name=f"{name}-tiles",
        tags=[{"kind": "tiles", "rows": list(rows), "labels": list(labels), "unit": "%", "slots": SLOTS}],
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=100, high_color="rgba(0, 0, 0, 0)")
    cells = p.add_glyph(source, Image(image="image", x="x", y="y", dw="dw", dh="dh", color_mapper=mapper))
    p.ygrid.grid_line_color = None
    label_rows(p, short or labels, inner_height)
    add_bands(page, p, over=True)
    add_markers(page, p, label_y=count * (1 + lane / inner_height / 2) if lane else None)
    p.add_tools(hover([cells], [("", "@image{0} %")], {"kind": "hover-tiles"}, point_policy="follow_mouse"))
    page.top = False
    return p


def row_height(count: int) -> int:
    """Pixels of one row so that a few rows are easy to tell apart and hundreds still fit on a screen."""
    for most, pixels in ((4, 22), (8, 16), (16, 12), (32, 8), (64, 6), (128, 4)):
        if count <= most:
            return pixels
    return 2


def color_scale() -> Pane:
    """The colours' meaning, once for all heatmaps. As DOM and not as Bokeh's color bar, which follows no theme."""
    stops = ", ".join(Viridis256[::51])
    gradient = {
        "width": "96px",
        "height": "7px",
        "border-radius": "2px",
        "background": f"linear-gradient(to right, {stops})",
    }
    line = {
        "display": "flex",
        "gap": "6px",
        "align-items": "center",
        "justify-content": "flex-end",
        "padding-right": f"{RIGHT}px",
        "font": f"10.5px {FONT}",
        "color": "inherit",
    }
    return Pane(
        elements=[Div(children=[_quiet("0"), Div(style=gradient), _quiet("100 %")], style=line)],
        name="color-scale",
        html_attributes={"role": "img", "aria-label": "Colours from 0 % (dark violet) to 100 % (yellow)"},
    )


def _quiet(text: str) -> Span:
    return Span(children=[text], style={"opacity": "0.7"})
