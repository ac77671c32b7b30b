"""GPU: one row per GPU and metric, or NVML's own words why there is none."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from bokeh.models import Range1d
from bokeh.models.annotations import BoxAnnotation, Label

from .heatmap import heatmap, row_height
from .marks import FONT, GRID, add_bands, add_markers
from .style import NEUTRAL, Page, new_figure

if TYPE_CHECKING:
    from bokeh.plotting import figure

    from ..store import Schema

# From the top row down: metric, what a person calls it, and what stands beside its row.
METRICS = (("utilisation", "busy", ""), ("memory", "memory", "memory"), ("power", "power", "power"))


def gpu(schema: Schema, page: Page) -> figure | None:
    """Utilisation, memory (of its total) and power (of its limit) of each GPU, in %.

    None before the sampler has told whether there are GPUs.
    """
    if schema.gpus:
        return _rows(schema, page)
    if schema.gpu_reason:
        return _reason(schema.gpu_reason, page)
    return None


def _rows(schema: Schema, page: Page) -> figure:
    rows = [
        (f"gpu/{one.index}/{metric}", f"GPU {one.index} {word}", short or f"GPU {one.index}")
        for one in reversed(schema.gpus)
        for metric, word, short in reversed(METRICS)
    ]
    names = sorted({one.name for one in schema.gpus})
    what = f"{len(schema.gpus)} × " if len(schema.gpus) > 1 and len(names) == 1 else ""
    title = f"GPU, % of maximum · {what}{', '.join(names)}"
    return heatmap(
        page,
        name="gpu",
        title=title,
        rows=[row for row, _, _ in rows],
        labels=[label for _, label, _ in rows],
        short=[short for _, _, short in rows],
        inner_height=len(rows) * (14 if 8 < len(rows) <= 24 else row_height(len(rows))),
    )


def _reason(reason: str, page: Page) -> figure:
    # A label on a canvas does not wrap by itself; 30 characters fit beside the axis of a 260 px sidebar.
    lines = textwrap.wrap(f"No GPU: {reason}", 30) or ["No GPU"]
    p = new_figure(
        page, name="gpu", title="GPU", inner_height=14 * len(lines) + 8, y_range=Range1d(start=0, end=1), axis=False
    )
    p.yaxis.ticker = []
    p.ygrid.grid_line_color = None
    p.add_layout(
        BoxAnnotation(
            fill_color=GRID,
            fill_alpha=0.16,
            line_color=None,
            hatch_pattern="right_diagonal_line",
            hatch_color=GRID,
            hatch_alpha=0.12,
            hatch_scale=8,
        )
    )
    p.add_layout(
        Label(
            x=8,
            y=0.5,
            x_units="screen",
            text="\n".join(lines),
            text_baseline="middle",
            text_font=FONT,
            text_font_size="11.5px",
            text_color=NEUTRAL,
            text_line_height=1.15,
            tags=["ink"],
            name="gpu-reason",
        )
    )
    add_bands(page, p, over=False)
    add_markers(page, p)
    page.top = False
    return p
