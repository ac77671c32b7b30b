"""Loaders, the ranks of a job, and other machines that work for a loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from bokeh.models.ui import UIElement

from ..node_sources import Node
from ..rank import JOB_PARTS, JOB_RANKS, Rank, jobs_of
from ..store import Schema
from ..store.charts import MANY_ROWS, hosts_of
from ..store.schema import PHASE_SERIES
from .curves import LOW, SECONDS, Curve, chart, curve_color, curves, key, stacks
from .heatmap import Group, Row, heatmap
from .style import NEUTRAL, Chart, Page, heading, missing

# ---- The loaders: images per second, waits and steps, and the phases of the steps.

_PHASE_STROKES = {"copy": "dotted", "forward": "solid", "backward": "dashed", "optimizer": "solid", "other": "dotted"}


def images(schema: Schema, page: Page) -> list[UIElement]:
    """Draw the images per second that each loader delivers; nothing without a loader.

    With several loaders, the key to their colours stands here, once for this chart and the next one.
    """
    if not schema.loaders:
        return []
    lines = [
        Curve(f"loader/{loader.id}/images", _label(schema, k, ""), "images/s", curve_color(k))
        for k, loader in enumerate(schema.loaders)
    ]
    parts: list[UIElement] = [heading("images", f"Images/s, mean of {SECONDS:g} s")]
    if len(schema.loaders) > 1:
        parts.append(key("legend", [(one.name, curve_color(k), "solid") for k, one in enumerate(schema.loaders)]))
    return [*parts, curves(page, "images", lines, means=True)]


def wait(schema: Schema, page: Page) -> list[UIElement]:
    """Return how long a step waits for its data, and how long the whole step takes, in ms; nothing without a loader."""
    lines = []
    for k, loader in enumerate(schema.loaders):
        series, color = f"loader/{loader.id}", curve_color(k)
        lines.append(Curve(f"{series}/wait", _label(schema, k, "waiting for data"), "ms", color))
        lines.append(Curve(f"{series}/step", _label(schema, k, "whole step"), "ms", color, "dotted"))
    # Of several loaders the strokes are explained here, and the colours above.
    strokes = [("waiting for data", NEUTRAL, "solid"), ("whole step", NEUTRAL, "dotted")]
    entries = strokes if len(schema.loaders) > 1 else None
    return chart(page, "wait", "Time per training step, ms", lines, entries=entries, means=True)


def phases(schema: Schema, page: Page) -> list[UIElement]:
    """Draw the phases of the steps besides the wait for data, in ms: a figure for each loader with measured phases.

    Lines and not areas above each other: an area has no way to leave a gap open.
    """
    title = "Phases of a step, ms"
    phased = [loader for loader in schema.loaders if f"loader/{loader.id}/other" in schema.columns]
    parts: list[UIElement] = []
    for loader in phased:
        name = "phases" if len(phased) == 1 else f"phases-{loader.id}"
        lines = [
            Curve(f"loader/{loader.id}/{phase}", phase, "ms", curve_color(k), _PHASE_STROKES[phase])
            for k, (phase, _) in enumerate(PHASE_SERIES)
        ]
        note = loader.name if len(schema.loaders) > 1 else None
        parts += chart(page, name, f"{title}, mean of {SECONDS:g} s", lines, note=note, means=True)
    return parts or missing(schema, "phases", title)


def _label(schema: Schema, k: int, what: str) -> str:
    """Return a line's label: `train: whole step` where there are several loaders, else `whole step`."""
    name = schema.loaders[k].name if len(schema.loaders) > 1 else ""
    return f"{name}: {what}" if name and what else name or what


# ---- The ranks of trainings that this kernel started: a strip of ranks x time each for step time and data wait.

_STRIPS = (
    ("step", "step time, from 0 ms (dark) to the slow steps (yellow)", "ms"),
    ("wait_percent", "wait for data, % of the step", "%"),
    ("gpu", "utilisation of each one's GPU, %", "%"),
)
_NAMED = 16  # ranks in the key of the lines; the hover names all
HERE = "this host"


def ranks(schema: Schema, page: Page) -> list[UIElement]:
    """Draw step time, share of the data wait and GPU of each rank that sends steps, and the CPU of each rank's process.

    Beside them the phases of each job's slowest and median rank. The heading has the reason of each rank that has
    ended; its rows are hatched while others go on.
    """
    several = len({rank.job for rank in schema.ranks}) > 1
    notes = [_ended(schema, several), _alignment(schema)]
    note = "; ".join(words for words in notes if words) or None
    parts: list[UIElement] = []
    for part, title, unit in _STRIPS:
        rows, levels = _rank_rows(schema, part, several)
        if rows:
            parts.append(heading(f"ranks-{part}", f"Ranks: {title}", note))
            parts.append(heatmap(page, f"ranks-{part}", rows, levels=levels, unit=unit))
            note = None
    for job in jobs_of(schema.ranks):
        parts += _phases(schema, page, job, several)
    known = [rank for rank in schema.ranks if f"rank/{rank.id}/cpu" in schema.columns]
    curves = [Curve(f"rank/{rank.id}/cpu", _name(rank, several), "%", curve_color(k)) for k, rank in enumerate(known)]
    entries = [(_name(replace(rank, gpu=None), several), curve_color(k), "solid") for k, rank in enumerate(known)]
    title = "Ranks: CPU of each process, % of a core"
    parts += chart(page, "ranks-cpu", title, curves, note=note, entries=entries[:_NAMED], height=LOW)
    return parts or missing(schema, "ranks", "Ranks")


def _rank_rows(schema: Schema, part: str, several: bool) -> tuple[list[Row], list[list[Group]]]:
    """Return the rows of a strip, the first rank highest, and the hosts and jobs that they belong to."""
    going_on = any(rank.alive for rank in schema.ranks)
    shown = [rank for rank in reversed(schema.ranks) if f"rank/{rank.id}/{part}" in schema.columns]
    rows = [
        Row(
            f"rank/{rank.id}/{part}",
            f"{_name(rank, several)}{'' if rank.alive else ' · ended'}",
            str(rank.number),
            hatched=going_on and not rank.alive,
        )
        for rank in shown
    ]
    levels = []
    hosts = list(dict.fromkeys(rank.node for rank in schema.ranks))
    if len(hosts) > 1:
        numbers = {node: str(number) for number, node in enumerate(hosts, 1)}
        found = _groups(shown, lambda rank: (rank.job, rank.node))
        levels.append(
            [Group(rank.host or HERE, numbers[rank.node], start, end, cut=True) for rank, start, end in found]
        )
    if several:
        found = _groups(shown, lambda rank: rank.job)
        levels.append([Group(f"job {rank.job}", str(rank.job), start, end) for rank, start, end in found])
    return rows, levels


def _groups(ranks: list[Rank], key: Callable[[Rank], object]) -> list[tuple[Rank, int, int]]:
    """Return runs of neighbours with the same key: the first of them, and their places (the end exclusive)."""
    edges = [k for k in range(len(ranks)) if k == 0 or key(ranks[k]) != key(ranks[k - 1])]
    return [(ranks[start], start, end) for start, end in pairwise([*edges, len(ranks)])]


def _phases(schema: Schema, page: Page, job: int, several: bool) -> list[UIElement]:
    """Return the phases of a job's slowest and median rank, one above the other over the same scale."""
    if f"job/{job}/slowest/other" not in schema.columns:
        return []
    of = f" of job {job}" if several else ""
    phases = [part for part, unit in JOB_PARTS if unit == "ms"]
    panels = [
        (f"ranks-{job}-{which}", f"{which} rank", [(f"job/{job}/{which}/{phase}", phase) for phase in phases])
        for which in JOB_RANKS
    ]
    return stacks(page, f"ranks-{job}-phases", f"Ranks: phases of the slowest and the median rank{of}, ms", panels)


def _name(rank: Rank, several: bool) -> str:
    words = [f"job {rank.job}"] if several else []
    gpu = [] if rank.gpu is None else [f"GPU {rank.gpu}"]
    return " · ".join([*words, f"rank {rank.number}", *([rank.host] if rank.host else []), *gpu])


def _alignment(schema: Schema) -> str:
    """Return how exactly the clocks of other hosts are known."""
    bounds = [rank.clock for rank in schema.ranks if rank.node and rank.alive and rank.clock is not None]
    return f"clocks of the hosts agree to ± {max(bounds):g} ms" if bounds else ""


def _ended(schema: Schema, several: bool) -> str:
    """Return which ranks have ended and why; those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for rank in schema.ranks:
        if not rank.alive:
            number = f"{rank.job}.{rank.number}" if several else str(rank.number)
            reasons.setdefault(rank.reason or "ended", []).append(number)
    return "; ".join(
        f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items()
    )


# ---- The other machines that work for a loader: their cores, the batches that they deliver, and their network.

_LABELLED = 14  # pixels of a row that has room for its label


def nodes(schema: Schema, page: Page) -> list[UIElement]:
    """Return how busy each core and GPU of each machine is, in %; batches per second from each; bytes to and from each.

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
        rows += [row for row in _node_rows(node) if row.series in columns]
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
        labelled = _LABELLED if len(folded) == len(schema.nodes) and len(rows) <= 2 * _NAMED else None
        pixels = 1 if len(rows) > MANY_ROWS else labelled
        parts += [heading("nodes", title, note), heatmap(page, "nodes", rows, levels=[groups], pixels=pixels)]
        note = None
    colors = [(node, curve_color(k)) for k, node in enumerate(schema.nodes)]
    entries = [(node.name, color, "solid") for node, color in colors[:_NAMED]]
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


def _node_rows(node: Node) -> list[Row]:
    """Return the rows that a machine may have, the lowest first: its cores, above them its GPUs."""
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


CHARTS: dict[str, Chart] = {"nodes": nodes, "ranks": ranks, "images": images, "wait": wait, "phases": phases}
