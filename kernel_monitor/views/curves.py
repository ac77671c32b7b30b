"""Charts of lines: one source, one glyph and one entry of the legend per curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.core.properties import value
from bokeh.models import BasicTicker, ColumnDataSource, DataRange1d, Line, NumeralTickFormatter, Range1d, Scatter, VArea
from bokeh.models.dom import Div, Span
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.ui import UIElement
from bokeh.models.ui.panes import Pane
from bokeh.plotting import figure

from ..store.charts import entry_display
from .style import FONT, LEFT, RIGHT, Page, add_marks, heading, hover, new_figure

SECONDS = 2.0  # seconds of a mean: a frame's window holds one batch or none
HEIGHT = 96
LOW = 72  # pixels of a chart in a group of charts
_CURVE_COLORS = (
    "#2f7fe0", "#e0791f", "#1f9e77", "#b45fc8", "#c9a000", "#d1495b", "#4fb3d9", "#8d6e63",
)  # fmt: skip
"""Distinct in hue and lightness for the common kinds of colour blindness, and on white as on black."""
_FORMATS = {"B": "0.[0] d", "B/s": "0.[0] d", "ms": "0,0.0", "batches/s": "0,0.0"}
"""Bokeh's formats of the units whose values are not whole numbers; `d` has it write bytes in kB, MB, GB."""
_MOST_DOTTED = 8
"""The most lines with dots: of four loaders."""
Entry = tuple[str, str, str]
"""An entry of a legend: words, colour, and stroke as CSS names it."""


@dataclass(frozen=True)
class Curve:
    series: str  # its series
    label: str  # in the legend and the hover
    unit: str  # of the series
    color: str  # of the line
    dash: str = "solid"  # of the line, as CSS names it: `solid`, `dashed` or `dotted`
    also: tuple[str, str] | None = None  # a second series and its unit, shown by the hover beside the first


def chart(
    page: Page,
    name: str,
    title: str,
    lines: Sequence[Curve],
    *,
    note: str | None = None,
    entries: Sequence[Entry] | None = None,
    **drawn: Any,
) -> list[UIElement]:
    """Return the heading, the legend and the figure (`curves`) of some lines; nothing without lines.

    The legend has an entry for each line, or those of `entries`; without any there is no legend.
    """
    if not lines:
        return []
    if entries is None:
        entries = [(line.label, line.color, line.dash) for line in lines]
    legend = [key(f"{name}-legend", entries)] if entries else []
    return [heading(name, title, note), *legend, curves(page, name, lines, **drawn)]


def curves(
    page: Page,
    name: str,
    lines: Sequence[Curve],
    *,
    height: int = HEIGHT,
    end: float | None = None,
    means: bool = False,
) -> figure:
    """Return a figure of lines of one unit from 0 up to `end`, or as high as what is visible, without data.

    Its source is called `<name>-lines`. With `means` the lines are means of two seconds, from the source
    `<name>-means`, and durations of few lines are dots besides: more dots hide each other, and drawing them takes more
    than all else on the page. A rate has no dots: a row holds whole batches, so its own values lie
    on a few levels, which say nothing of the loop and look like faulty data.
    """
    y_range = Range1d(start=0, end=end) if end is not None else DataRange1d(start=0, range_padding=0.12, default_span=1)
    p = new_figure(page, name, height, y_range)
    # A first step of many seconds must not flatten the chart once it has left it.
    p.window_axis = "x"
    unit = lines[0].unit
    axis = {"B": "0.[0] d", "B/s": "0.[0] d", "batches/s": "0,0.[0]"}  # a machine may deliver less than one a second
    p.yaxis.formatter = NumeralTickFormatter(format=axis.get(unit, "0,0"))
    p.yaxis.ticker = BasicTicker(desired_num_ticks=4 if height >= HEIGHT else 3, num_minor_ticks=0)
    columns = {f"y{k}": line.series for k, line in enumerate(lines)}
    columns |= {f"z{k}": line.also[0] for k, line in enumerate(lines) if line.also}
    with_dots = means and unit == "ms" and len(lines) <= _MOST_DOTTED
    raw = _source(f"{name}-lines", {"kind": "lines", "columns": columns}, columns)
    source = raw
    if means:
        source = _source(f"{name}-means", {"kind": "means", "columns": columns, "seconds": SECONDS}, columns)
    drawn: list[GlyphRenderer[Any]] = []
    dots: list[GlyphRenderer[Any]] = []
    for k, line in enumerate(lines):
        if with_dots:
            dot = Scatter(x="time", y=f"y{k}", size=2.5, fill_color=line.color, fill_alpha=0.16, line_color=None)
            dots.append(p.add_glyph(raw, dot))
        dash: str | list[int] = {"dashed": [6, 3], "dotted": [2, 3]}.get(line.dash, "solid")
        stroke = Line(x="time", y=f"y{k}", line_color=line.color, line_width=2 if means else 1.5, line_dash=dash)
        drawn.append(p.add_glyph(source, stroke))
    # Each line in the hover: label, column, unit, and the column and unit of its second series.
    readings = [
        [line.label or "mean", f"y{k}", line.unit, *([f"z{k}", line.also[1]] if line.also else [])]
        for k, line in enumerate(lines)
    ]
    p.add_tools(
        hover(
            drawn,
            [(lines[0].label or "mean", f"@y0{{{_FORMATS.get(unit, '0,0')}}} {'' if unit == 'B' else unit}")],
            {"kind": "hover-lines", "values": readings},
            # Of many lines only the nearest is named.
            mode="vline" if len(lines) <= 4 else "mouse",
            line_policy="nearest",
            attachment="horizontal",
        )
    )
    add_marks(page, p, labels=True)
    if isinstance(p.y_range, DataRange1d):
        # Only they decide how high the chart is.
        p.y_range.update(renderers=[*dots, *drawn])
    return p


def key(name: str, entries: Sequence[Entry]) -> Pane:
    """Return a legend. As DOM, so that long names of users wrap."""
    line = {
        "display": "flex",
        "flex-wrap": "wrap",
        "gap": "2px 14px",
        "padding": f"0 {RIGHT}px 0 {LEFT}px",
        "font": f"10.5px {FONT}",
        "color": "inherit",
    }
    entry = {"gap": "4px", "align-items": "center", "min-width": "0", "max-width": "100%"}
    text = {"min-width": "0", "overflow-wrap": "anywhere"}
    shown: list[Any] = []
    for words, color, stroke in entries:
        swatch = Div(style={"flex": "none", "width": "18px", "border-top": f"2px {stroke} {color}"})
        label = Span(children=[words], style={**text, "opacity": "0.8"})
        shown.append(Div(children=[swatch, label], style={**entry, "display": entry_display(words)}))
    return Pane(elements=[Div(children=shown, style=line)], name=name)


def curve_color(k: int) -> str:
    """Return the k-th colour; they repeat."""
    return _CURVE_COLORS[k % len(_CURVE_COLORS)]


def _source(name: str, tag: dict[str, Any], columns: dict[str, str]) -> ColumnDataSource:
    return ColumnDataSource(data={"time": [], **{column: [] for column in columns}}, name=name, tags=[tag])


# ---- Panels of areas above each other, over one scale: what the parts of a whole take.

PHASES = ("copy", "forward", "backward", "optimizer", "other", "wait")
"""The phases in the order of their colours, which are those of the chart `phases`."""
_Panel = tuple[str, str, Sequence[tuple[str, str]]]
"""A panel: its name, its title, and from the lowest up the series of each part and the part's label."""


def stacks(page: Page, name: str, title: str, panels: Sequence[_Panel], rank: str = "rank") -> list[UIElement]:
    """Return a heading, a legend, and a figure without data for each panel.

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
