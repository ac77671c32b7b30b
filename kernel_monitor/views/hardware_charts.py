"""GPUs and the host: heatmaps of load, and lines of clocks, memory, disk, network and pressure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from bokeh.models.ui import UIElement
from bokeh.plotting import figure

from ..analysis.frames import allowed_cores, limits_note, memory_note
from ..store import Schema
from ..store.charts import PROCESS_ROLES, chart_series
from ..store.schema import Gpu
from .curves import LOW, Curve, Entry, chart, curve_color
from .heatmap import Group, Row, heatmap, row_height, tall_row
from .style import NEUTRAL, Chart, Page, heading, missing

# ---- GPUs: heatmaps of their load, engines and counters, and lines of their clocks, temperature and bus traffic.


@dataclass(frozen=True)
class Metric:
    """A metric of a GPU: `part` of `gpu/<i>/<part>`, its name in a row's label, and the short name beside its rows."""

    part: str
    words: str
    short: str


LOAD = (Metric("utilisation", "busy", "busy"), Metric("memory", "memory", "memory"), Metric("power", "power", "power"))
_THROTTLED = Metric("throttled", "throttled", "thrott.")
ENGINES = (
    Metric("encoder", "encoder", "encode"),
    Metric("decoder", "decoder", "decode"),
    Metric("jpeg", "JPEG engine", "JPEG"),
    Metric("ofa", "optical flow", "flow"),
)
_NO_NVML = {"NVML Shared Library Not Found": "NVML not found"}
"""Short forms of messages of NVML that are too long for a line."""
_COUNTERS = (
    Metric("sm_active", "SM active", "SM"),
    Metric("sm_occupancy", "SM occupancy", "occup."),
    Metric("tensor_active", "tensor cores active", "tensor"),
    Metric("dram_active", "DRAM active", "DRAM"),
)


def gpu(schema: Schema, page: Page) -> list[UIElement]:
    """Draw utilisation, memory (of its total), power (of its limit) and MIG instances' memory of each GPU, in %.

    Without GPUs, one line with NVML's reason; nothing before the first hello.
    """
    if schema.gpus:
        mig = [_mig(schema, name) for name in chart_series(schema, "gpu") if "/mig/" in name]
        names = list(dict.fromkeys(gpu.name for gpu in schema.gpus))
        times = f"{len(schema.gpus)} × " if len(schema.gpus) > 1 and len(names) == 1 else ""
        title = heading("gpu", "GPU, % of maximum", f"{times}{', '.join(names)}")
        return [title, _rows(schema, page, "gpu", LOAD, mig, keep=True)]
    if schema.gpu_reason:
        return [heading("gpu", "", f"No NVIDIA GPU: {_NO_NVML.get(schema.gpu_reason, schema.gpu_reason)}")]
    return []


def gpu_engines(schema: Schema, page: Page) -> list[UIElement]:
    """Return how busy the encoder, decoder, JPEG and optical-flow engines are, in %."""
    return _detail(schema, page, "gpu-engines", "GPU engines busy, %", ENGINES)


def gpu_counters(schema: Schema, page: Page) -> list[UIElement]:
    """Draw the GPM counters: the share of time in which multiprocessors, tensor cores and memory worked, in %."""
    return _detail(schema, page, "gpu-counters", "GPU counters (GPM), %", _COUNTERS)


def gpu_clocks(schema: Schema, page: Page) -> list[UIElement]:
    """Draw SM clock (MHz), temperature (°C), and when a clock was held down for power, heat or a fault."""
    entries = _entries(schema) if len(schema.gpus) > 1 else []
    clocks, heat = _curves(schema, "clock_sm", "MHz"), _curves(schema, "temperature", "°C")
    parts = chart(page, "gpu-clocks", "SM clock, MHz", clocks, entries=entries, height=LOW)
    parts += chart(page, "gpu-heat", "GPU temperature, °C", heat, entries=[] if parts else entries, height=LOW)
    # The last GPU at the bottom.
    throttled = [gpu for gpu in reversed(schema.gpus) if _series(gpu, _THROTTLED) in schema.columns]
    if throttled:
        rows = [_row(schema, gpu, _THROTTLED, f"GPU {gpu.index}") for gpu in throttled]
        parts.append(heading("gpu-throttled", "GPU throttled, % of the time", "power cap, heat or hardware slowdown"))
        parts.append(heatmap(page, "gpu-throttled", rows, pixels=14 if len(rows) <= 4 else 8, from_top=True))
    return parts or missing(schema, "gpu-clocks", "SM clock, MHz")


def gpu_bus(schema: Schema, page: Page) -> list[UIElement]:
    """Return what each GPU receives and sends over PCIe and over NVLink, in bytes per second."""
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
    """Return the heatmap; metrics that no GPU has are left out, unless they are to be kept."""
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


# ---- The host: its cores (by socket and NUMA node where there are several), processes, memory, disk, network,
# pressure.

OTHER = 1 << 16  # number of the group of cores that the topology lacks


def cpu(schema: Schema, page: Page) -> list[UIElement]:
    """Return how busy each logical core is, in %; nothing before the first hello.

    Cores that this process may not use are hatched.
    """
    if not schema.cpus:
        return []
    cores, levels = grouped(schema)
    allowed = allowed_cores(schema)
    rows = []
    for place, core in enumerate(cores):
        # The coarsest first.
        where = [group.label for groups in reversed(levels) for group in groups if group.start <= place < group.end]
        label = " · ".join([f"core {core}", *where] + (["not for this process"] if core not in allowed else []))
        short = str(core) if levels else f"core {core}"
        rows.append(Row(f"cpu/{core}/busy", label, short, hatched=core not in allowed))
    return [
        heading("cpu", "CPU busy, % per core", limits_note(schema)),
        heatmap(page, "cpu", rows, levels=levels, pixels=None if schema.gpus else tall_row(len(rows))),
    ]


def grouped(schema: Schema) -> tuple[list[int], list[list[Group]]]:
    """Return the cores from the lowest row up, and the levels of groups that they form, the finest first.

    A level is left out where it has one group, or where each core is a group of its own (virtual machines often have a
    socket per core). Where both are the same, sockets are the familiar name.
    """
    topology = schema.host.get("topology") or {}
    sockets, nodes = (_numbered(topology.get(key), schema.cpus) for key in ("sockets", "numa"))
    cores = sorted(schema.cpus, key=lambda core: (sockets[core], nodes[core], core))
    levels = [_runs("NUMA", cores, nodes), _runs("socket", cores, sockets)]
    if len({tuple((group.start, group.end) for group in level) for level in levels}) == 1:
        del levels[0]
    return cores, [level for level in levels if 1 < len(level) < len(cores)]


def _numbered(groups: Sequence[Sequence[int]] | None, cores: tuple[int, ...]) -> dict[int, int]:
    """Return the number of each core's group; cores in no group are in `OTHER`."""
    of = {int(core): number for number, group in enumerate(groups or ()) for core in group}
    return {core: of.get(core, OTHER) for core in cores}


def _runs(word: str, cores: list[int], of: dict[int, int]) -> list[Group]:
    """Return groups of neighbours that have the same number."""
    groups: list[Group] = []
    for number, members in groupby(cores, key=of.__getitem__):
        start = groups[-1].end if groups else 0
        label = "other" if number == OTHER else f"{word} {number}"
        groups.append(Group(label, str(number), start, start + len(list(members))))
    return groups


def processes(schema: Schema, page: Page) -> list[UIElement]:
    """Draw CPU (% of one core) and resident memory of the kernel and its children, by role."""
    title = "Processes: CPU, % of one core"
    cpu = _lines(schema, "process/{}/cpu", "%", PROCESS_ROLES)
    memory = _lines(schema, "process/{}/memory", "B", PROCESS_ROLES)
    parts = chart(page, "processes", title, cpu, height=LOW)
    entries = () if parts else None
    parts += chart(page, "processes-memory", "Processes: resident memory", memory, entries=entries, height=LOW)
    return parts or missing(schema, "processes", title)


def memory(schema: Schema, page: Page) -> list[UIElement]:
    """Draw memory in use, of the host and of the container's limit, in % and in bytes; and swap."""
    host, container, swap = curve_color(0), curve_color(1), curve_color(3)
    share = _present(
        schema,
        Curve("memory/percent", "host", "%", host, also=_also(schema, "memory/used")),
        Curve("container/memory_percent", "container", "%", container, also=_also(schema, "container/memory")),
    )
    amount = _present(
        schema,
        Curve("memory/used", "host", "B", host),
        Curve("container/memory", "container", "B", container),
        Curve("swap/used", "swap", "B", swap),
        # In the colours that they have elsewhere.
        *(
            Curve(f"node/{node.id}/memory", node.name, "B", curve_color(k), "dotted")
            for k, node in enumerate(schema.nodes)
        ),
    )
    note, entries = memory_note(schema), None if len(share) > 1 else ()
    parts = chart(page, "memory", "Memory, %", share, note=note, entries=entries, height=LOW, end=100.0)
    parts += chart(page, "memory-amount", "Memory in use", amount, height=LOW)
    return parts or missing(schema, "memory", "Memory, %")


def io(schema: Schema, page: Page) -> list[UIElement]:
    """Return how busy the busiest disk is, what goes to and from disks, and what goes over the network."""
    disk = _lines(schema, "disk/{}", "B/s", (("read", "read"), ("write", "written")))
    network = _lines(schema, "network/{}", "B/s", (("received", "received"), ("sent", "sent")))
    parts: list[UIElement] = []
    if "disk/busy" in schema.columns:
        parts.append(heading("disk-busy", "Busiest disk, % of the time"))
        parts.append(heatmap(page, "disk-busy", [Row("disk/busy", "busiest disk", "disk")], pixels=14))
    parts += chart(page, "disk", "Disks, bytes per second", disk, height=LOW)
    parts += chart(page, "network", "Network, bytes per second", network, height=LOW)
    return parts or missing(schema, "io", "Disk and network")


def pressure(schema: Schema, page: Page) -> list[UIElement]:
    """Return the share of time in which some task, or all of them, stood still for lack of CPU, memory or I/O, in %."""
    title = "Pressure, % of the time that tasks were stalled"
    cpu, memory, disk = curve_color(0), curve_color(3), curve_color(1)
    lines = _present(
        schema,
        Curve("pressure/cpu", "CPU", "%", cpu),
        Curve("pressure/memory", "memory", "%", memory),
        Curve("pressure/io", "I/O", "%", disk),
        Curve("pressure/memory_full", "memory, all tasks", "%", memory, "dotted"),
        Curve("pressure/io_full", "I/O, all tasks", "%", disk, "dotted"),
        Curve("container/throttled", "CPU quota used up, % of its periods", "%", curve_color(4), "dashed"),
    )
    return chart(page, "pressure", title, lines) or missing(schema, "pressure", title)


def _lines(schema: Schema, series: str, unit: str, parts: Sequence[tuple[str, str]]) -> list[Curve]:
    """Return a line for each measured part, `(in the name of its series, label)`; its place decides its colour."""
    return _present(
        schema, *(Curve(series.format(part), words, unit, curve_color(k)) for k, (part, words) in enumerate(parts))
    )


def _also(schema: Schema, series: str) -> tuple[str, str] | None:
    return (series, "B") if series in schema.columns else None


def _present(schema: Schema, *lines: Curve) -> list[Curve]:
    return [line for line in lines if line.series in schema.columns]


CHARTS: dict[str, Chart] = {
    "cpu": cpu,
    "gpu": gpu,
    "processes": processes,
    "memory": memory,
    "io": io,
    "pressure": pressure,
    "gpu-engines": gpu_engines,
    "gpu-counters": gpu_counters,
    "gpu-clocks": gpu_clocks,
    "gpu-bus": gpu_bus,
}
