"""Heatmaps: rows of whole per cent over time, drawn from a ring of small images.

Each image (a tile) is a range of time of all rows, so that a feed patches one tile of a few kilobytes for every
frame, whatever the machine's size. See *Documents* in `docs/messages.md` for the tag that a feed reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bokeh.models import ColumnDataSource, Image, LinearColorMapper, Range1d
from bokeh.models.dom import Div, Span
from bokeh.models.ui.panes import Pane
from bokeh.palettes import Viridis256

from ..store.charts import SLOTS
from .markers import FONT, add_bands, add_markers
from .rows import Group, Row, hatch, label_groups, label_rows, row_height, separate
from .style import RIGHT, Page, hover, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.plotting import figure

LANE = 18  # pixels above the rows of the first chart, where the markers' labels stand


def heatmap(
    page: Page,
    *,
    name: str,
    rows: Sequence[Row],
    levels: Sequence[Sequence[Group]] = (),
    pixels: int | None = None,
    from_top: bool = False,
    axis: bool = True,
) -> figure:
    """A heatmap without data.

    Args:
        page: the document that it becomes part of.
        name: of the figure; its source is called `<name>-tiles`.
        rows: the lowest row first.
        levels: groups of rows, the finest level first; each level has a column of labels, the finest one separators.
        pixels: height of a row; None: by their number.
        from_top: where only some rows have room for a label, whether the highest row has one, not the lowest.
        axis: whether it shows the time axis.
    """
    count = len(rows)
    pixels = pixels or row_height(count)
    height = count * pixels
    lane = LANE if page.top else 0
    y_range = Range1d(start=0, end=count * (1 + lane / height))
    p = new_figure(page, name=name, inner_height=height + lane, y_range=y_range, axis=axis)
    tag = {
        "kind": "tiles",
        "rows": [row.series for row in rows],
        "labels": [row.label for row in rows],
        "unit": "%",
        "slots": SLOTS,
    }
    source = ColumnDataSource(
        data={"image": [], "x": [], "y": [], "dw": [], "dh": []}, name=f"{name}-tiles", tags=[tag]
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=100, high_color="rgba(0, 0, 0, 0)")
    cells = p.add_glyph(source, Image(image="image", x="x", y="y", dw="dw", dh="dh", color_mapper=mapper))
    p.ygrid.grid_line_color = None
    label_rows(p, [row.short for row in rows], pixels, from_top=from_top)
    for groups in levels:
        label_groups(p, groups, pixels)
    hatch(p, [row.hatched for row in rows])
    for groups in levels[:1]:
        separate(p, groups)
    add_bands(page.bands, p, over=True)
    add_markers(page.markers, p, label_y=count * (1 + lane / height / 2) if lane else None)
    p.add_tools(hover([cells], [("", "@image{0} %")], {"kind": "hover-tiles"}, point_policy="follow_mouse"))
    page.top, page.scale = False, True
    return p


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
