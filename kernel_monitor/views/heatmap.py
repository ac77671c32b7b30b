"""Heatmaps: rows of whole per cent over time, drawn from a ring of small images.

Each image (a tile) is a range of time of all rows, so that a feed patches one tile of a few kilobytes for every
frame, whatever the machine's size. See *Documents* in `docs/messages.md` for the tag that a feed reads.
Separators and hatching of rows are Bokeh's grids over fixed ticks: two models for any number of cores, and no source
to feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    Grid,
    Image,
    LinearAxis,
    LinearColorMapper,
    NoOverlap,
    PlainText,
    Range1d,
)
from bokeh.models.dom import Div, Span
from bokeh.models.text import BaseText
from bokeh.models.ui.panes import Pane
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from ..store.charts import SLOTS, shortened
from .style import AXIS_STYLE, FONT, GRID, INK, PAPER, RIGHT, Page, add_marks, hover, new_figure

LANE = 18  # pixels above the rows of the first chart, where the markers' labels stand
LETTER = 6.2  # pixels of a letter at the labels' size
FEWEST = 5  # letters of a name that was cut
OWN = "own"  # tag of what keeps its colour in any theme, because it lies on cells


@dataclass(frozen=True)
class Row:
    series: str  # in %
    label: str  # in the hover
    short: str  # beside the row
    hatched: bool = False  # whether its cells are not meant for this process, or can never hold a value


@dataclass(frozen=True)
class Group:
    """The rows `start` to `end` (exclusive), called `label`, or `short` where that has no room."""

    label: str
    short: str
    start: int
    end: int
    cut: bool = False  # whether the label is cut in its middle before `short` takes its place: a name of a machine


def row_height(count: int) -> int:
    """Return the height of a row in pixels: few rows are easy to distinguish, and hundreds still fit on a screen."""
    for most, pixels in ((4, 22), (8, 16), (16, 12), (32, 8), (64, 6), (128, 4)):
        if count <= most:
            return pixels
    return 2


def tall_row(count: int) -> int:
    """Return the height in pixels of a core's row on a machine without a GPU, whose room the cores share."""
    return min(36, row_height(count) + 64 // count)


def heatmap(
    page: Page,
    name: str,
    rows: Sequence[Row],
    *,
    levels: Sequence[Sequence[Group]] = (),
    pixels: int | None = None,
    from_top: bool = False,
    unit: str = "%",
) -> figure:
    """Return a heatmap without data; its source is called `<name>-tiles`.

    Args:
        rows: the lowest row first.
        levels: groups of rows, the finest level first; each level has a column of labels, the finest one separators.
        pixels: height of a row; None: by their number.
        from_top: where only some rows have room for a label, whether the highest row has one, not the lowest.
        unit: of the rows' series; where it is not %, the colours go from 0 to the high values that were measured.
    """
    count = len(rows)
    pixels = pixels or row_height(count)
    height = count * pixels
    lane = LANE if page.top else 0
    p = new_figure(page, name, height + lane, Range1d(start=0, end=count * (1 + lane / height)))
    tag = {
        "kind": "tiles",
        "rows": [row.series for row in rows],
        "labels": [row.label for row in rows],
        "unit": unit,
        "slots": SLOTS,
        # In % of which value cells are coloured, the page finds where it is not 100.
        **({} if unit == "%" else {"scale": "auto"}),
    }
    source = ColumnDataSource(
        data={"image": [], "x": [], "y": [], "dw": [], "dh": []}, name=f"{name}-tiles", tags=[tag]
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=100, high_color="rgba(0, 0, 0, 0)")
    cells = p.add_glyph(source, Image(image="image", x="x", y="y", dw="dw", dh="dh", color_mapper=mapper))
    p.ygrid.grid_line_color = None
    _label_rows(p, rows, pixels, from_top=from_top)
    for groups in levels:
        _label_groups(p, groups, pixels)
    _hatch(p, rows)
    if levels:
        _separate(p, levels[0])
    add_marks(page, p, over=True, label_y=count * (1 + lane / height / 2) if lane else None)
    p.add_tools(hover([cells], [("", "@image{0} %")], {"kind": "hover-tiles"}, point_policy="follow_mouse"))
    page.scale = True
    return p


def _label_rows(p: figure, rows: Sequence[Row], pixels: int, *, from_top: bool) -> None:
    """Label rows at their middles; only every 2nd, 4th, 8th… where one is less high than a label.

    The lowest row is always among them, or the highest.
    """
    step = 1
    if pixels < 14:
        while pixels * step < 20:
            step *= 2
    first = (len(rows) - 1) % step if from_top else 0
    shown: dict[float | str, str | BaseText] = {
        place + 0.5: PlainText(text=rows[place].short) for place in range(first, len(rows), step)
    }
    p.yaxis.ticker = [float(place) for place in shown]
    p.yaxis.major_label_overrides = shown
    p.yaxis.major_label_policy = NoOverlap(min_distance=1)


def _label_groups(p: figure, groups: Sequence[Group], pixels: int) -> None:
    """Name groups of rows in a column of upright words left of the rows' labels.

    A group that is too low for its word has its number; where that is too high, only every 2nd, 4th, 8th… has.
    """
    words = [_word(group, int(((group.end - group.start) * pixels - 4) / LETTER)) for group in groups]
    step = 1
    while min((group.end - group.start) * step for group in groups) * pixels < 11 and step < len(groups):
        step *= 2
    shown: dict[float | str, str | BaseText] = {
        (group.start + group.end) / 2: PlainText(text=word)
        for group, word in list(zip(groups, words, strict=True))[::step]
    }
    axis = LinearAxis(
        major_label_overrides=shown,
        major_label_orientation="vertical" if max(len(word) for word in words) > 2 else "horizontal",
        major_label_standoff=2,
        **AXIS_STYLE,
    )
    # The stubs of Bokeh 3.9 want another ticker here.
    axis.update(ticker=FixedTicker(ticks=[float(place) for place in shown]))
    p.add_layout(axis, "left")


def _word(group: Group, letters: int) -> str:
    """Return the label of a group with room for so many letters."""
    if group.cut and letters >= FEWEST:
        return shortened(group.label, letters)
    return group.label if not group.cut and len(group.label) <= letters else group.short


def _separate(p: figure, groups: Sequence[Group]) -> None:
    """Draw a line between neighbouring groups: dark on light, to be seen on cells of any colour."""
    edges = [float(group.start) for group in groups[1:]]
    line = Grid(
        dimension=1,
        ticker=FixedTicker(ticks=edges, minor_ticks=edges),
        minor_grid_line_color=PAPER,
        minor_grid_line_width=3,
        minor_grid_line_alpha=0.7,
        grid_line_color=INK,
        grid_line_width=1,
        level="glyph",
        name="separators",
        tags=[OWN],
    )
    p.add_layout(line)


def _hatch(p: figure, rows: Sequence[Row]) -> None:
    """Draw gray hatching over rows, over neighbours as one band."""
    hatched = [False, *(row.hatched for row in rows), False]
    edges = [float(k) for k in range(len(rows) + 1) if hatched[k] != hatched[k + 1]]
    if not edges:
        return
    bands = Grid(
        dimension=1,
        # Every second segment is a band, and the first begins at the axis's start.
        ticker=FixedTicker(ticks=[0.0, *edges]),
        grid_line_color=None,
        band_fill_color=GRID,
        band_fill_alpha=0.6,
        band_hatch_pattern="right_diagonal_line",
        band_hatch_color=PAPER,
        band_hatch_alpha=0.2,
        band_hatch_scale=12,
        level="glyph",
        name="hatched",
        tags=[OWN],
    )
    p.add_layout(bands)


def color_scale() -> Pane:
    """Return the key to the colours of all heatmaps, as DOM: Bokeh's color bar follows no theme."""
    least, most = (Span(children=[text], style={"opacity": "0.7"}) for text in ("0", "100 %"))
    gradient = {
        "width": "96px",
        "height": "7px",
        "border-radius": "2px",
        "background": f"linear-gradient(to right, {', '.join(Viridis256[::51])})",
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
        elements=[Div(children=[least, Div(style=gradient), most], style=line)],
        name="color-scale",
        html_attributes={"role": "img", "aria-label": "Colours from 0 % (dark violet) to 100 % (yellow)"},
    )
