"""The other machines that work for a loader: their cores, the batches that they deliver, and their network."""

from __future__ import annotations

from bokeh.models.ui import UIElement

from ..node_sources import Node
from ..store import Schema
from ..store.charts import MANY_ROWS, hosts_of
from .curves import LOW, SECONDS, Curve, chart, curve_color
from .heatmap import Group, Row, heatmap
from .style import NEUTRAL, Page, heading, missing

NAMED = 16  # machines in the keys of the lines; the hover names all
LABELLED = 14  # pixels of a row that has room for its label


def nodes(schema: Schema, page: Page) -> list[UIElement]:
    """How busy each core and GPU of each machine is, in %; batches per second from each; bytes to and from each.

    A folded machine has one row for the mean of its cores, and one for that of its GPUs. The rows of a machine that is
    gone are hatched, and the reason is in the heading.
    """
    folded = [node for node in schema.nodes if node.folded]
    gpus = " and GPU" if any(node.gpus for node in schema.nodes) else ""
    each = f"per core{gpus}{', or mean of all' if folded else ''}"
    each = "mean of each one's cores" + gpus.replace("GPU", "GPUs") if len(folded) == len(schema.nodes) else each
    hosts = hosts_of(schema)
    word = "Other machines" if hosts else "CPU machines"
    title = f"{word}: busy, % {each}" if not folded else f"{word}: busy, %, {each}"
    columns = schema.columns
    rows: list[Row] = []
    groups: list[Group] = []
    # The first machine is the highest, and its first core its lowest row, as in the chart of this machine's cores.
    for number, node in reversed(list(enumerate(schema.nodes, 1))):
        start = len(rows)
        rows += [row for row in _rows(node) if row.series in columns]
        if len(rows) > start:
            groups.append(Group(node.name, str(number), start, len(rows), cut=True))
    gone = [
        f"{node.name} is gone{f': {node.reason}' if node.reason else ''}" for node in schema.nodes if not node.alive
    ]
    without = sum(node.alive and not node.cores for node in schema.nodes)
    notes = [*gone, *([f"the cores of {without} more are not shown"] if without else [])]
    note = "; ".join(notes) or None
    parts: list[UIElement] = []
    if rows:
        # Each row of folded machines has its label, where they are few.
        labelled = LABELLED if len(folded) == len(schema.nodes) and len(rows) <= 2 * NAMED else None
        pixels = 1 if len(rows) > MANY_ROWS else labelled
        parts += [heading("nodes", title, note), heatmap(page, "nodes", rows, levels=[groups], pixels=pixels)]
        note = None
    colors = [(node, curve_color(k)) for k, node in enumerate(schema.nodes)]
    entries = [(node.name, color, "solid") for node, color in colors[:NAMED]]
    batches = [
        Curve(series, node.name, "batches/s", color)
        for node, color in colors
        if node.id not in hosts and (series := f"node/{node.id}/batches") in columns
    ]
    traffic = [
        Curve(series, f"{node.name}: {words}", "B/s", color, dash)
        for node, color in colors
        for part, words, dash in (("sent", "sent", "solid"), ("received", "received", "dotted"))
        if (series := f"node/{node.id}/network/{part}") in columns
    ]
    title = f"{word}: batches/s, mean of {SECONDS:g} s"
    parts += chart(page, "nodes-batches", title, batches, note=note, entries=entries, height=LOW, means=True)
    strokes = [("sent", NEUTRAL, "solid"), ("received", NEUTRAL, "dotted")]
    # The colours are those of the chart above, where there is one.
    keys = strokes if batches else [*entries, *strokes]
    parts += chart(page, "nodes-network", f"{word}: network, bytes per second", traffic, entries=keys, height=LOW)
    return parts or missing(schema, "nodes", word)


def _rows(node: Node) -> list[Row]:
    """The rows that a machine may have, the lowest first: its cores, above them its GPUs."""
    series, gone = f"node/{node.id}", "" if node.alive else " · gone"
    if node.folded:
        means = [("busy", f"mean of {len(node.cores)} cores", "CPU"), ("gpu", f"mean of {len(node.gpus)} GPUs", "GPU")]
        return [
            Row(f"{series}/{part}", f"{node.name} · {words}{gone}", short, hatched=not node.alive)
            for part, words, short in means[: 1 + bool(node.gpus)]
        ]
    cores = [
        Row(f"{series}/cpu/{core}/busy", f"{node.name} · core {core}{gone}", str(core), hatched=not node.alive)
        for core in node.cores
    ]
    gpus = [
        Row(f"{series}/gpu/{k}/utilisation", f"{node.name} · GPU {k} · {name}{gone}", f"G{k}", hatched=not node.alive)
        for k, name in enumerate(node.gpus)
    ]
    return [*cores, *gpus]
