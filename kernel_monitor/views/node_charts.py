"""The other machines that work for a loader: their cores, the batches that they deliver, and their network."""

from __future__ import annotations

from bokeh.models.ui import UIElement

from ..store import Schema
from .curves import LOW, SECONDS, Curve, chart, curve_color
from .heatmap import Group, Row, heatmap
from .style import NEUTRAL, Page, heading, missing

MANY = 512  # rows; beyond, each is one pixel high


def nodes(schema: Schema, page: Page) -> list[UIElement]:
    """How busy each core of each machine is, in %; batches per second from each; bytes per second to and from each.

    The rows of a machine that is gone are hatched, and the reason is in the heading.
    """
    title = "CPU machines: busy, % per core"
    columns = schema.columns
    rows: list[Row] = []
    groups: list[Group] = []
    # The first machine is the highest, and its first core its lowest row, as in the chart of this machine's cores.
    for number, node in reversed(list(enumerate(schema.nodes, 1))):
        start = len(rows)
        for core in node.cores:
            series = f"node/{node.id}/cpu/{core}/busy"
            label = f"{node.name} · core {core}{'' if node.alive else ' · gone'}"
            if series in columns:
                rows.append(Row(series, label, str(core), hatched=not node.alive))
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
        pixels = 1 if len(rows) > MANY else None
        parts += [heading("nodes", title, note), heatmap(page, "nodes", rows, levels=[groups], pixels=pixels)]
        note = None
    colors = [(node, curve_color(k)) for k, node in enumerate(schema.nodes)]
    entries = [(node.name, color, "solid") for node, color in colors]
    batches = [
        Curve(series, node.name, "batches/s", color)
        for node, color in colors
        if (series := f"node/{node.id}/batches") in columns
    ]
    traffic = [
        Curve(series, f"{node.name}: {words}", "B/s", color, dash)
        for node, color in colors
        for part, words, dash in (("sent", "sent", "solid"), ("received", "received", "dotted"))
        if (series := f"node/{node.id}/network/{part}") in columns
    ]
    title = f"CPU machines: batches/s, mean of {SECONDS:g} s"
    parts += chart(page, "nodes-batches", title, batches, note=note, entries=entries, height=LOW, means=True)
    strokes = [("sent", NEUTRAL, "solid"), ("received", NEUTRAL, "dotted")]
    title = "CPU machines: network, bytes per second"
    parts += chart(page, "nodes-network", title, traffic, entries=strokes, height=LOW)
    return parts or missing(schema, "nodes", "CPU machines")
