"""The host beside its cores: processes, memory, disk and network, and the kernel's pressure counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.machine_limits import memory_note
from ..store.charts import PROCESS_ROLES, chart_series
from .curves import LOW, Curve, curve_color, curves, legend
from .heatmap import heatmap
from .rows import Row
from .style import heading, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.models.ui import UIElement

    from ..store import Schema
    from .style import Page


def processes(schema: Schema, page: Page) -> list[UIElement]:
    """CPU (% of one core) and resident memory of the kernel and its children, by role."""
    title = "Processes: CPU, % of one core"
    cpu, memory = (_present(schema, _roles(part, unit)) for part, unit in (("cpu", "%"), ("memory", "B")))
    if not cpu and not memory:
        return missing(schema, "processes", title)
    parts: list[UIElement] = []
    if cpu:
        parts += [heading("processes", title), legend("processes-legend", cpu)]
        parts.append(curves(page, name="processes", lines=cpu, height=LOW, axis=not memory))
    if memory:
        parts.append(heading("processes-memory", "Processes: resident memory"))
        parts += [] if cpu else [legend("processes-legend", memory)]
        parts.append(curves(page, name="processes-memory", lines=memory, height=LOW))
    return parts


def memory(schema: Schema, page: Page) -> list[UIElement]:
    """Memory in use, of the host and of the container's limit, in % and in bytes; and swap."""
    host, container, swap = curve_color(0), curve_color(1), curve_color(3)
    share = _present(
        schema,
        [
            Curve("memory/percent", "host", "%", host, also=_also(schema, "memory/used")),
            Curve("container/memory_percent", "container", "%", container, also=_also(schema, "container/memory")),
        ],
    )
    amount = _present(
        schema,
        [
            Curve("memory/used", "host", "B", host),
            Curve("container/memory", "container", "B", container),
            Curve("swap/used", "swap", "B", swap),
        ],
    )
    if not share and not amount:
        return missing(schema, "memory", "Memory, %")
    parts: list[UIElement] = []
    if share:
        parts.append(heading("memory", "Memory, %", memory_note(schema)))
        parts += [legend("memory-share-legend", share)] if len(share) > 1 else []
        parts.append(curves(page, name="memory", lines=share, height=LOW, end=100.0, axis=not amount))
    if amount:
        parts += [heading("memory-amount", "Memory in use"), legend("memory-legend", amount)]
        parts.append(curves(page, name="memory-amount", lines=amount, height=LOW))
    return parts


def io(schema: Schema, page: Page) -> list[UIElement]:
    """How busy the busiest disk is, what goes to and from disks, and what goes over the network."""
    if not chart_series(schema, "io"):
        return missing(schema, "io", "Disk and network")
    disk = _present(schema, _directions("disk", (("read", "read"), ("write", "written"))))
    network = _present(schema, _directions("network", (("received", "received"), ("sent", "sent"))))
    parts: list[UIElement] = []
    if "disk/busy" in schema.columns:
        parts.append(heading("disk-busy", "Busiest disk, % of the time"))
        rows = [Row("disk/busy", "busiest disk", "disk")]
        parts.append(heatmap(page, name="disk-busy", rows=rows, pixels=14, axis=not disk and not network))
    if disk:
        parts += [heading("disk", "Disks, bytes per second"), legend("disk-legend", disk)]
        parts.append(curves(page, name="disk", lines=disk, height=LOW, axis=not network))
    if network:
        parts += [heading("network", "Network, bytes per second"), legend("network-legend", network)]
        parts.append(curves(page, name="network", lines=network, height=LOW))
    return parts


def pressure(schema: Schema, page: Page) -> list[UIElement]:
    """The share of time in which some task, or all of them, stood still for lack of CPU, memory or I/O, in %."""
    title = "Pressure, % of the time that tasks were stalled"
    cpu, memory, disk = curve_color(0), curve_color(3), curve_color(1)
    lines = _present(
        schema,
        [
            Curve("pressure/cpu", "CPU", "%", cpu),
            Curve("pressure/memory", "memory", "%", memory),
            Curve("pressure/io", "I/O", "%", disk),
            Curve("pressure/memory_full", "memory, all tasks", "%", memory, "dotted"),
            Curve("pressure/io_full", "I/O, all tasks", "%", disk, "dotted"),
            Curve("container/throttled", "CPU quota used up, % of its periods", "%", curve_color(4), "dashed"),
        ],
    )
    if not lines:
        return missing(schema, "pressure", title)
    return [heading("pressure", title), legend("pressure-legend", lines), curves(page, name="pressure", lines=lines)]


def _roles(part: str, unit: str) -> list[Curve]:
    return [
        Curve(f"process/{role}/{part}", words, unit, curve_color(k)) for k, (role, words) in enumerate(PROCESS_ROLES)
    ]


def _directions(group: str, parts: Sequence[tuple[str, str]]) -> list[Curve]:
    return [Curve(f"{group}/{part}", words, "B/s", curve_color(k)) for k, (part, words) in enumerate(parts)]


def _also(schema: Schema, series: str) -> tuple[str, str] | None:
    return (series, "B") if series in schema.columns else None


def _present(schema: Schema, lines: Sequence[Curve]) -> list[Curve]:
    return [line for line in lines if line.series in schema.columns]
