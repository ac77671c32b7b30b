"""The host: its cores (by socket and NUMA node where there are several), processes, memory, disk, network, pressure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bokeh.models.ui import UIElement

from ..analysis.machine_limits import allowed_cores, limits_note, memory_note
from ..store import Schema
from ..store.charts import PROCESS_ROLES
from .curves import LOW, Curve, chart, curve_color
from .heatmap import Group, Row, heatmap, tall_row
from .style import Page, heading, missing

OTHER = 1 << 16  # number of the group of cores that the topology lacks


def cpu(schema: Schema, page: Page) -> list[UIElement]:
    """How busy each logical core is, in %; nothing before the first hello.

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
    """The cores from the lowest row up, and the levels of groups that they form, the finest first.

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
    """The number of each core's group; cores in no group are in `OTHER`."""
    of = {int(core): number for number, group in enumerate(groups or ()) for core in group}
    return {core: of.get(core, OTHER) for core in cores}


def _runs(word: str, cores: list[int], of: dict[int, int]) -> list[Group]:
    """Neighbours of the same number as groups."""
    groups: list[Group] = []
    for number, members in groupby(cores, key=of.__getitem__):
        start = groups[-1].end if groups else 0
        label = "other" if number == OTHER else f"{word} {number}"
        groups.append(Group(label, str(number), start, start + len(list(members))))
    return groups


def processes(schema: Schema, page: Page) -> list[UIElement]:
    """CPU (% of one core) and resident memory of the kernel and its children, by role."""
    title = "Processes: CPU, % of one core"
    cpu = _lines(schema, "process/{}/cpu", "%", PROCESS_ROLES)
    memory = _lines(schema, "process/{}/memory", "B", PROCESS_ROLES)
    parts = chart(page, "processes", title, cpu, height=LOW)
    entries = () if parts else None
    parts += chart(page, "processes-memory", "Processes: resident memory", memory, entries=entries, height=LOW)
    return parts or missing(schema, "processes", title)


def memory(schema: Schema, page: Page) -> list[UIElement]:
    """Memory in use, of the host and of the container's limit, in % and in bytes; and swap."""
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
    """How busy the busiest disk is, what goes to and from disks, and what goes over the network."""
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
    """The share of time in which some task, or all of them, stood still for lack of CPU, memory or I/O, in %."""
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
    """A line for each measured part: `(in the name of its series, label)`; its colour depends on its place alone."""
    return _present(
        schema, *(Curve(series.format(part), words, unit, curve_color(k)) for k, (part, words) in enumerate(parts))
    )


def _also(schema: Schema, series: str) -> tuple[str, str] | None:
    return (series, "B") if series in schema.columns else None


def _present(schema: Schema, *lines: Curve) -> list[Curve]:
    return [line for line in lines if line.series in schema.columns]
