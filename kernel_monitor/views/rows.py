"""Rows of a heatmap: their labels, and the names, separators and hatching of groups of rows.

Separators and hatching are Bokeh's grids over fixed ticks: two models for any number of cores, and no source to feed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bokeh.models import FixedTicker, Grid, LinearAxis, NoOverlap

from .markers import FONT, GRID, INK, PAPER
from .style import NEUTRAL, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models.text import BaseText
    from bokeh.plotting import figure

LETTER = 6.2  # pixels of a letter at the labels' size
OWN = "own"  # tag of what keeps its colour in any theme, because it lies on cells


@dataclass(frozen=True)
class Row:
    """One row."""

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


def row_height(count: int) -> int:
    """Pixels of a row: a few rows are easy to distinguish, and hundreds still fit on a screen."""
    for most, pixels in ((4, 22), (8, 16), (16, 12), (32, 8), (64, 6), (128, 4)):
        if count <= most:
            return pixels
    return 2


def label_rows(p: figure, labels: Sequence[str], pixels: int, *, from_top: bool = False) -> None:
    """Label rows that are `pixels` high at their middles; only every 2nd, 4th, 8th… where that is less than a label.

    The lowest row is always among them, or the highest.
    """
    step = 1
    if pixels < 14:
        while pixels * step < 20:
            step *= 2
    shown: dict[float | str, str | BaseText] = {
        row + 0.5: plain(label)
        for row, label in list(enumerate(labels))[(len(labels) - 1) % step if from_top else 0 :: step]
    }
    p.yaxis.ticker = [float(row) for row in shown]
    p.yaxis.major_label_overrides = shown
    p.yaxis.major_label_policy = NoOverlap(min_distance=1)


def label_groups(p: figure, groups: Sequence[Group], pixels: int) -> None:
    """Name groups of rows in a column of upright words left of the rows' labels.

    A group that is too low for its word has its number; where that is too high, only every 2nd, 4th, 8th… has.
    """
    words = [_fitting(group, pixels) for group in groups]
    step = 1
    while min((group.end - group.start) * step for group in groups) * pixels < 11 and step < len(groups):
        step *= 2
    shown: dict[float | str, str | BaseText] = {
        (group.start + group.end) / 2: plain(word) for group, word in list(zip(groups, words, strict=True))[::step]
    }
    axis = LinearAxis(
        major_label_overrides=shown,
        major_label_orientation="vertical" if max(len(word) for word in words) > 2 else "horizontal",
        major_label_text_color=NEUTRAL,
        major_label_text_font=FONT,
        major_label_text_font_size="10.5px",
        major_label_standoff=2,
        major_tick_line_color=None,
        minor_tick_line_color=None,
        axis_line_color=None,
    )
    # The stubs of Bokeh 3.9 want another ticker here.
    axis.update(ticker=FixedTicker(ticks=[float(place) for place in shown]))
    p.add_layout(axis, "left")


def separate(p: figure, groups: Sequence[Group]) -> None:
    """A line between each two neighbouring groups."""
    edges = [float(group.start) for group in groups[1:]]
    # A dark line on a light one is seen on any colour of cell.
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


def hatch(p: figure, hatched: Sequence[bool]) -> None:
    """Gray hatching over these rows, neighbours in one band."""
    edges = [float(k) for k in range(len(hatched) + 1) if _at(hatched, k) != _at(hatched, k - 1)]
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


def _at(hatched: Sequence[bool], k: int) -> bool:
    return 0 <= k < len(hatched) and hatched[k]


def _fitting(group: Group, pixels: int) -> str:
    return group.label if len(group.label) * LETTER + 4 <= (group.end - group.start) * pixels else group.short
