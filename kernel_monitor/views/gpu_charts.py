"""GPUs: heatmaps of their load, engines and counters, and lines of their clocks, temperature and bus traffic.

A heatmap has one row per GPU and metric. A single GPU's rows are named by metric; several GPUs are grouped by metric,
so that a GPU that differs from the others stands out. Lines have one colour per GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models.ui import UIElement
from bokeh.plotting import figure

from ..store import Schema
from ..store.charts import chart_series
from ..store.schema import Gpu
from .curves import LOW, Curve, Entry, chart, curve_color
from .heatmap import Group, Row, heatmap, row_height
from .style import NEUTRAL, Page, heading, missing


@dataclass(frozen=True)
class Metric:
    """`part` of `gpu/<i>/<part>`, its name in a row's label, and the short name beside its rows."""

    part: str
    words: str
    short: str


LOAD = (Metric("utilisation", "busy", "busy"), Metric("memory", "memory", "memory"), Metric("power", "power", "power"))
THROTTLED = Metric("throttled", "throttled", "thrott.")
ENGINES = (
    Metric("encoder", "encoder", "encode"),
    Metric("decoder", "decoder", "decode"),
    Metric("jpeg", "JPEG engine", "JPEG"),
    Metric("ofa", "optical flow", "flow"),
)
NO_NVML = {"NVML Shared Library Not Found": "NVML not found"}
"""What NVML says in more words than a line has room for."""
COUNTERS = (
    Metric("sm_active", "SM active", "SM"),
    Metric("sm_occupancy", "SM occupancy", "occup."),
    Metric("tensor_active", "tensor cores active", "tensor"),
    Metric("dram_active", "DRAM active", "DRAM"),
)


def gpu(schema: Schema, page: Page) -> list[UIElement]:
    """Utilisation, memory (of its total) and power (of its limit) of each GPU and memory of its MIG instances, in %.

    Without GPUs, one line with NVML's reason; nothing before the first hello.
    """
    if schema.gpus:
        mig = [_mig(schema, name) for name in chart_series(schema, "gpu") if "/mig/" in name]
        names = list(dict.fromkeys(gpu.name for gpu in schema.gpus))
        times = f"{len(schema.gpus)} × " if len(schema.gpus) > 1 and len(names) == 1 else ""
        title = heading("gpu", "GPU, % of maximum", f"{times}{', '.join(names)}")
        return [title, _rows(schema, page, "gpu", LOAD, mig, keep=True)]
    if schema.gpu_reason:
        return [heading("gpu", "", f"No NVIDIA GPU: {NO_NVML.get(schema.gpu_reason, schema.gpu_reason)}")]
    return []


def gpu_engines(schema: Schema, page: Page) -> list[UIElement]:
    """How busy the encoder, decoder, JPEG and optical-flow engines are, in %."""
    return _detail(schema, page, "gpu-engines", "GPU engines busy, %", ENGINES)


def gpu_counters(schema: Schema, page: Page) -> list[UIElement]:
    """GPM: the share of time and of slots in which the multiprocessors, tensor cores and memory really worked, in %."""
    return _detail(schema, page, "gpu-counters", "GPU counters (GPM), %", COUNTERS)


def gpu_clocks(schema: Schema, page: Page) -> list[UIElement]:
    """SM clock (MHz), temperature (°C), and when a clock was held down for power, heat or a fault."""
    entries = _entries(schema) if len(schema.gpus) > 1 else []
    clocks, heat = _curves(schema, "clock_sm", "MHz"), _curves(schema, "temperature", "°C")
    parts = chart(page, "gpu-clocks", "SM clock, MHz", clocks, entries=entries, height=LOW)
    parts += chart(page, "gpu-heat", "GPU temperature, °C", heat, entries=[] if parts else entries, height=LOW)
    # The last GPU at the bottom.
    throttled = [gpu for gpu in reversed(schema.gpus) if _series(gpu, THROTTLED) in schema.columns]
    if throttled:
        rows = [_row(schema, gpu, THROTTLED, f"GPU {gpu.index}") for gpu in throttled]
        parts.append(heading("gpu-throttled", "GPU throttled, % of the time", "power cap, heat or hardware slowdown"))
        parts.append(heatmap(page, "gpu-throttled", rows, pixels=14 if len(rows) <= 4 else 8, from_top=True))
    return parts or missing(schema, "gpu-clocks", "SM clock, MHz")


def gpu_bus(schema: Schema, page: Page) -> list[UIElement]:
    """What each GPU receives and sends over PCIe and over NVLink, in bytes per second."""
    entries = [*_entries(schema), ("received", NEUTRAL, "solid"), ("sent", NEUTRAL, "dotted")]
    parts: list[UIElement] = []
    for name, word in (("pcie", "PCIe"), ("nvlink", "NVLink")):
        lines = _curves(schema, f"{name}_received", "B/s", ", received")
        lines += _curves(schema, f"{name}_sent", "B/s", ", sent", "dotted")
        title = f"{word}, bytes per second"
        parts += chart(page, f"gpu-{name}", title, lines, entries=[] if parts else entries, height=LOW)
    return parts or missing(schema, "gpu-bus", "PCIe and NVLink, bytes per second")


def _detail(schema: Schema, page: Page, name: str, title: str, metrics: Sequence[Metric]) -> list[UIElement]:
    if not chart_series(schema, name):
        return missing(schema, name, title)
    return [heading(name, title), _rows(schema, page, name, metrics, [], keep=False)]


def _rows(
    schema: Schema, page: Page, name: str, metrics: Sequence[Metric], extra: Sequence[Row], *, keep: bool
) -> figure:
    """The heatmap; metrics that no GPU has are left out, unless they are to be kept."""
    shown = [metric for metric in metrics if keep or any(_series(gpu, metric) in schema.columns for gpu in schema.gpus)]
    single = len(schema.gpus) == 1
    # From the bottom row up, so that the first metric of the first GPU stands on top.
    rows = list(extra)
    groups = [Group("MIG", "MIG", 0, len(rows))] if rows else []
    count = len(rows) + len(shown) * len(schema.gpus)
    # Rows of GPUs are few enough that each has a name.
    pixels = 14 if 8 < count <= 24 else 11 if 24 < count <= 40 else row_height(count)
    upright = not single and len(schema.gpus) * pixels >= 48
    for metric in reversed(shown):
        groups.append(Group(metric.short, metric.short, len(rows), len(rows) + len(schema.gpus)))
        for gpu in reversed(schema.gpus):
            if single:
                short = f"GPU {gpu.index}" if metric is shown[0] and keep else metric.short
            else:
                short = str(gpu.index) if upright else f"{metric.short} {gpu.index}"
            rows.append(_row(schema, gpu, metric, short))
    return heatmap(page, name, rows, levels=[groups] if upright else [], pixels=pixels, from_top=True)


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
    _, index, _, instance, part = series.split("/")
    words = {"memory": "memory", "sm_active": "SM active"}[part]
    names = {(str(gpu.index), str(mig["index"])): f" ({mig['name']})" for gpu in schema.gpus for mig in gpu.mig}
    name = f"GPU {index} MIG {instance}{names.get((index, instance), '')}"
    return Row(series, f"{name} {words}", f"MIG {index}:{instance}")


def _curves(schema: Schema, part: str, unit: str, word: str = "", dash: str = "solid") -> list[Curve]:
    return [
        Curve(f"gpu/{gpu.index}/{part}", f"GPU {gpu.index}{word}", unit, curve_color(k), dash)
        for k, gpu in enumerate(schema.gpus)
        if f"gpu/{gpu.index}/{part}" in schema.columns
    ]


def _entries(schema: Schema) -> list[Entry]:
    return [(f"GPU {gpu.index}", curve_color(k), "solid") for k, gpu in enumerate(schema.gpus)]
