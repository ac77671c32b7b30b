"""The ranks of trainings that this kernel started: a strip of ranks x time each for step time and data wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from bokeh.models.ui import UIElement

from ..ranks.rank import JOB_PARTS, JOB_RANKS, Rank, jobs_of
from ..store import Schema
from .curves import LOW, Curve, chart, curve_color
from .heatmap import Group, Row, heatmap
from .stacks import stacks
from .style import Page, heading, missing

STRIPS = (
    ("step", "step time, from 0 ms (dark) to the slow steps (yellow)", "ms"),
    ("wait_percent", "wait for data, % of the step", "%"),
    ("gpu", "utilisation of each one's GPU, %", "%"),
)
NAMED = 16  # ranks in the key of the lines; the hover names all
HERE = "this host"


def ranks(schema: Schema, page: Page) -> list[UIElement]:
    """Step time and share of the data wait of each rank that sends steps; its GPU; the CPU of each rank's process.

    Beside them the phases of each job's slowest and median rank. The heading has the reason of each rank that has
    ended; its rows are hatched while others go on.
    """
    several = len({rank.job for rank in schema.ranks}) > 1
    notes = [_ended(schema, several), _alignment(schema)]
    note = "; ".join(words for words in notes if words) or None
    parts: list[UIElement] = []
    for part, title, unit in STRIPS:
        rows, levels = _rows(schema, part, several)
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
    parts += chart(page, "ranks-cpu", title, curves, note=note, entries=entries[:NAMED], height=LOW)
    return parts or missing(schema, "ranks", "Ranks")


def _rows(schema: Schema, part: str, several: bool) -> tuple[list[Row], list[list[Group]]]:
    """The rows of a strip, the first rank highest, and the hosts and jobs that they belong to."""
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
    """Neighbours with the same key: the first of them, and their places (the end exclusive)."""
    edges = [k for k in range(len(ranks)) if k == 0 or key(ranks[k]) != key(ranks[k - 1])]
    return [(ranks[start], start, end) for start, end in pairwise([*edges, len(ranks)])]


def _phases(schema: Schema, page: Page, job: int, several: bool) -> list[UIElement]:
    """The phases of a job's slowest and median rank, one above the other over the same scale."""
    if f"job/{job}/slowest/other" not in schema.columns:
        return []
    of = f" of job {job}" if several else ""
    phases = [part for part, unit in JOB_PARTS if unit == "ms"]
    panels = [
        (f"ranks-{job}-{which}", f"{which} rank", [(f"job/{job}/{which}/{phase}", phase) for phase in phases])
        for which in JOB_RANKS
    ]
    return stacks(page, f"ranks-{job}-phases", f"Ranks: phases of the slowest and the median one{of}, ms", panels)


def _name(rank: Rank, several: bool) -> str:
    words = [f"job {rank.job}"] if several else []
    gpu = [] if rank.gpu is None else [f"GPU {rank.gpu}"]
    return " · ".join([*words, f"rank {rank.number}", *([rank.host] if rank.host else []), *gpu])


def _alignment(schema: Schema) -> str:
    """How exactly the clocks of other hosts are known."""
    bounds = [rank.clock for rank in schema.ranks if rank.node and rank.alive and rank.clock is not None]
    return f"clocks of the hosts agree to ± {max(bounds):g} ms" if bounds else ""


def _ended(schema: Schema, several: bool) -> str:
    """Which ranks have ended and why; those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for rank in schema.ranks:
        if not rank.alive:
            number = f"{rank.job}.{rank.number}" if several else str(rank.number)
            reasons.setdefault(rank.reason or "ended", []).append(number)
    return "; ".join(
        f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items()
    )
