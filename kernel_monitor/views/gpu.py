"""GPUs as heatmaps: how busy they are, their engines, and the counters of Hopper and later.

One row per GPU and metric. A single GPU's rows are named by metric; several are grouped by metric, because what one
wants to see is which GPU differs from the others.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bokeh.models import Range1d
from bokeh.models.annotations import BoxAnnotation, Label

from ..store.charts import chart_series, missing_reason
from .heatmap import heatmap
from .marks import FONT, GRID, add_bands, add_markers
from .rows import Group, Row, row_height
from .style import NEUTRAL, Page, heading, new_figure, quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models.ui import UIElement
    from bokeh.plotting import figure

    from ..store import Schema
    from ..store.schema import Gpu


@dataclass(frozen=True)
class Metric:
    """`part` of `gpu/<i>/<part>`, what a person calls it, and what stands beside its rows."""

    part: str
    words: str
    short: str


LOAD = (Metric("utilisation", "busy", "busy"), Metric("memory", "memory", "memory"), Metric("power", "power", "power"))
ENGINES = (
    Metric("encoder", "encoder", "encode"),
    Metric("decoder", "decoder", "decode"),
    Metric("jpeg", "JPEG engine", "JPEG"),
    Metric("ofa", "optical flow", "flow"),
)
COUNTERS = (
    Metric("sm_active", "SM active", "SM"),
    Metric("sm_occupancy", "SM occupancy", "occup."),
    Metric("tensor_active", "tensor cores active", "tensor"),
    Metric("dram_active", "DRAM active", "DRAM"),
)


def gpu(schema: Schema, page: Page) -> list[UIElement]:
    """Utilisation, memory (of its total) and power (of its limit) of each GPU and memory of its MIG instances, in %.

    Where there is none, NVML's own words why; nothing before the sampler has told.
    """
    if schema.gpus:
        mig = [_mig(schema, name) for name in chart_series(schema, "gpu") if "/mig/" in name]
        title = heading("gpu", "GPU, % of maximum", products(schema))
        return [title, _rows(schema, page, "gpu", LOAD, mig, keep=True)]
    if schema.gpu_reason:
        return [heading("gpu", "GPU"), _reason(schema.gpu_reason, page)]
    return []


def gpu_engines(schema: Schema, page: Page) -> list[UIElement]:
    """How busy the encoder, decoder, JPEG and optical-flow engines are, in %."""
    return _detail(schema, page, "gpu-engines", "GPU engines busy, %", ENGINES)


def gpu_counters(schema: Schema, page: Page) -> list[UIElement]:
    """GPM: the share of time and of slots in which the multiprocessors, tensor cores and memory really worked, in %."""
    return _detail(schema, page, "gpu-counters", "GPU counters (GPM), %", COUNTERS)


def products(schema: Schema) -> str | None:
    """`8 × NVIDIA H200`."""
    names = list(dict.fromkeys(one.name for one in schema.gpus))
    what = f"{len(schema.gpus)} × " if len(schema.gpus) > 1 and len(names) == 1 else ""
    return f"{what}{', '.join(names)}" or None


def metric_rows(schema: Schema, metric: Metric) -> list[Row]:
    """A row for each GPU that has the metric, the last GPU at the bottom."""
    found = [gpu for gpu in reversed(schema.gpus) if _series(gpu, metric) in schema.columns]
    return [_row(schema, gpu, metric, f"GPU {gpu.index}") for gpu in found]


def _detail(schema: Schema, page: Page, name: str, title: str, metrics: Sequence[Metric]) -> list[UIElement]:
    if not chart_series(schema, name):
        return [quiet(name, title, missing_reason(schema, name))] if schema.series else []
    return [heading(name, title), _rows(schema, page, name, metrics, [], keep=False)]


def _rows(
    schema: Schema, page: Page, name: str, metrics: Sequence[Metric], extra: Sequence[Row], *, keep: bool
) -> figure:
    """The heatmap; metrics that no GPU has are left out, unless they are to be kept."""
    shown = [one for one in metrics if keep or any(_series(gpu, one) in schema.columns for gpu in schema.gpus)]
    single = len(schema.gpus) == 1
    # From the bottom row up, so that the first metric of the first GPU stands on top.
    rows = list(extra)
    groups = [Group("MIG", "MIG", 0, len(rows))] if rows else []
    pixels = _pixels(len(rows) + len(shown) * len(schema.gpus))
    upright = not single and len(schema.gpus) * pixels >= 48
    for metric in reversed(shown):
        groups.append(Group(metric.short, metric.short, len(rows), len(rows) + len(schema.gpus)))
        for gpu in reversed(schema.gpus):
            if single:
                short = f"GPU {gpu.index}" if metric is shown[0] and keep else metric.short
            else:
                short = str(gpu.index) if upright else f"{metric.short} {gpu.index}"
            rows.append(_row(schema, gpu, metric, short))
    return heatmap(page, name=name, rows=rows, levels=[groups] if upright else [], pixels=pixels, from_top=True)


def _pixels(count: int) -> int:
    """Rows of GPUs are few enough to be named one by one."""
    return 14 if 8 < count <= 24 else 11 if 24 < count <= 40 else row_height(count)


def _series(gpu: Gpu, metric: Metric) -> str:
    return f"gpu/{gpu.index}/{metric.part}"


def _row(schema: Schema, gpu: Gpu, metric: Metric, short: str) -> Row:
    series = _series(gpu, metric)
    label = f"GPU {gpu.index} {metric.words}"
    if series in schema.columns:
        return Row(series, label, short)
    why = gpu.reasons.get(metric.part)
    return Row(series, f"{label}: {why}" if why else label, short, hatched=True)


def _mig(schema: Schema, series: str) -> Row:
    _, gpu, _, instance, part = series.split("/")
    words = {"memory": "memory", "sm_active": "SM active"}[part]
    told = {(str(one.index), str(mig["index"])): f" ({mig['name']})" for one in schema.gpus for mig in one.mig}
    name = f"GPU {gpu} MIG {instance}{told.get((gpu, instance), '')}"
    return Row(series, f"{name} {words}", f"MIG {gpu}:{instance}")


def _reason(reason: str, page: Page) -> figure:
    # A label on a canvas does not wrap by itself; 22 characters fit beside the axis of a 260 px sidebar.
    lines = textwrap.wrap(f"No GPU: {reason}", 22) or ["No GPU"]
    p = new_figure(page, name="gpu", inner_height=14 * len(lines) + 8, y_range=Range1d(start=0, end=1), axis=False)
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
