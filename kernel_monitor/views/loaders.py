"""What the loaders deliver and how long each step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bokeh.models import BasicTicker, ColumnDataSource, DataRange1d, Line, NumeralTickFormatter, Scatter
from bokeh.models.annotations import Legend, LegendItem
from bokeh.models.dom import Div, Span
from bokeh.models.ui.panes import Pane

from .marks import FONT, add_bands, add_markers
from .style import LEFT, LOADER_COLORS, NEUTRAL, RIGHT, Page, hover, new_figure

if TYPE_CHECKING:
    from bokeh.models.dom import DOMNode
    from bokeh.models.renderers import GlyphRenderer
    from bokeh.models.ui import UIElement
    from bokeh.plotting import figure

    from ..store import Schema

SECONDS = 2.0
"""The line is the mean over these seconds; one frame's window holds one batch or none."""
HEIGHT = 96


@dataclass(frozen=True)
class _Curve:
    """One line: `part` of `loader`, called `label`."""

    series: str
    label: str
    unit: str
    color: str
    dash: str | list[int]
    # The fixed part of the tooltip's format.
    digits: str


def legend(schema: Schema) -> Pane | None:
    """Whose colours and which strokes are what, for both charts; None where the charts say it themselves.

    As DOM: names of other people's making wrap and are cut short, which a canvas would not do.
    """
    if len(schema.loaders) < 2:
        return None
    entries: list[str | DOMNode | UIElement] = [
        _entry(loader.name, _color(k), "solid") for k, loader in enumerate(schema.loaders)
    ]
    entries += [_entry("waiting for data", NEUTRAL, "solid"), _entry("whole step", NEUTRAL, "dotted")]
    line = {
        "display": "flex",
        "flex-wrap": "wrap",
        "gap": "2px 14px",
        "padding": f"0 {RIGHT}px 0 {LEFT}px",
        "font": f"10.5px {FONT}",
        "color": "inherit",
    }
    return Pane(elements=[Div(children=entries, style=line)], name="legend")


def _entry(name: str, color: str, stroke: str) -> Div:
    swatch = Div(style={"flex": "none", "width": "18px", "border-top": f"2px {stroke} {color}"})
    text = {"min-width": "0", "overflow": "hidden", "text-overflow": "ellipsis", "white-space": "nowrap"}
    style = {"display": "flex", "gap": "4px", "align-items": "center", "min-width": "0", "max-width": "100%"}
    return Div(children=[swatch, Span(children=[name], style={**text, "opacity": "0.8"})], style=style)


def images(schema: Schema, page: Page) -> figure | None:
    """Images per second that each loader delivers; None without a loader."""
    if not schema.loaders:
        return None
    lines = [
        _Curve(f"loader/{loader.id}/images", _called(schema, k, ""), "images/s", _color(k), "solid", "0,0")
        for k, loader in enumerate(schema.loaders)
    ]
    return _chart(page, name="images", title=f"Images/s, mean of {SECONDS:g} s", lines=lines, with_legend=False)


def wait(schema: Schema, page: Page) -> figure | None:
    """How long a training step waits for its data, and how long the whole step takes, in ms; None without a loader."""
    if not schema.loaders:
        return None
    lines = []
    for k, loader in enumerate(schema.loaders):
        series, color = f"loader/{loader.id}", _color(k)
        lines.append(_Curve(f"{series}/wait", _called(schema, k, "waiting for data"), "ms", color, "solid", "0,0.0"))
        lines.append(_Curve(f"{series}/step", _called(schema, k, "whole step"), "ms", color, [2, 3], "0,0.0"))
    one = len(schema.loaders) == 1
    return _chart(page, name="wait", title="Time per training step, ms", lines=lines, with_legend=one)


def _chart(page: Page, *, name: str, title: str, lines: list[_Curve], with_legend: bool) -> figure:
    p = new_figure(
        page,
        name=name,
        title=title,
        inner_height=HEIGHT,
        y_range=DataRange1d(start=0, range_padding=0.12, default_span=1),
        above=20 if with_legend else 0,
    )
    # A first step of many seconds must not flatten the chart once it has left it.
    p.window_axis = "x"
    p.yaxis.formatter = NumeralTickFormatter(format="0,0")
    p.yaxis.ticker = BasicTicker(desired_num_ticks=4, num_minor_ticks=0)
    columns = {f"y{k}": line.series for k, line in enumerate(lines)}
    raw = _source(f"{name}-lines", {"kind": "lines", "columns": columns}, columns)
    means = _source(f"{name}-means", {"kind": "means", "columns": columns, "seconds": SECONDS}, columns)
    items, curves = [], []
    for k, line in enumerate(lines):
        x, y = "time", f"y{k}"
        dots = Scatter(x=x, y=y, size=2.5, fill_color=line.color, fill_alpha=0.16, line_color=None)
        curves.append(p.add_glyph(raw, dots))
        drawn: GlyphRenderer[Any] = p.add_glyph(
            means, Line(x=x, y=y, line_color=line.color, line_width=2, line_dash=line.dash)
        )
        curves.append(drawn)
        items.append(LegendItem(label={"value": line.label}, renderers=[drawn]))
        label = line.label or "mean"
        p.add_tools(
            hover(
                [drawn],
                [(label, f"@y{k}{{{line.digits}}} {line.unit}")],
                {"kind": "hover-lines", "values": [[label, f"y{k}", line.unit]]},
                mode="vline",
                line_policy="nearest",
                attachment="horizontal",
            )
        )
    if with_legend:
        p.add_layout(_legend(items), "above")
    add_bands(page, p, over=False, labels=True)
    add_markers(page, p)
    # Only they decide how high the chart is.
    p.y_range.update(renderers=curves)
    page.top = False
    return p


def _source(name: str, tag: dict[str, Any], columns: dict[str, str]) -> ColumnDataSource:
    return ColumnDataSource(data={"time": [], **{column: [] for column in columns}}, name=name, tags=[tag])


def _legend(items: list[LegendItem]) -> Legend:
    legend = Legend(
        items=items,
        orientation="horizontal",
        ncols=2,
        location="left",
        margin=0,
        spacing=8,
        label_standoff=4,
        glyph_width=18,
        glyph_height=10,
        label_height=14,
        label_text_font=FONT,
        label_text_font_size="10.5px",
        label_text_color=NEUTRAL,
        background_fill_color=None,
        border_line_color=None,
    )
    # The stubs of Bokeh 3.9 refuse a plain number here.
    legend.update(padding=0)
    return legend


def _color(k: int) -> str:
    return LOADER_COLORS[k % len(LOADER_COLORS)]


def _called(schema: Schema, k: int, what: str) -> str:
    """`train: whole step` where there are several loaders, else `whole step`."""
    name = schema.loaders[k].name if len(schema.loaders) > 1 else ""
    return f"{name}: {what}" if name and what else name or what
