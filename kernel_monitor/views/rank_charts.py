"""The ranks of trainings that this kernel started: a strip of ranks x time each for step time and data wait."""

from __future__ import annotations

from bokeh.models.ui import UIElement

from ..ranks.rank import Rank
from ..store import Schema
from .curves import LOW, Curve, chart, curve_color
from .heatmap import Group, Row, heatmap
from .style import Page, heading, missing

STRIPS = (
    ("step", "step time, from 0 ms (dark) to the slow steps (yellow)", "ms"),
    ("wait_percent", "wait for data, % of the step", "%"),
)
NAMED = 16  # ranks in the key of the lines; the hover names all


def ranks(schema: Schema, page: Page) -> list[UIElement]:
    """Step time and share of the data wait of each rank that sends steps; the CPU of each rank's process.

    The heading has the reason of each rank that has ended; its rows are hatched while others go on.
    """
    several = len({rank.job for rank in schema.ranks}) > 1
    note = _ended(schema, several) or None
    parts: list[UIElement] = []
    for part, title, unit in STRIPS:
        rows, groups = _rows(schema, part, several)
        if rows:
            parts.append(heading(f"ranks-{part}", f"Ranks: {title}", note))
            parts.append(heatmap(page, f"ranks-{part}", rows, levels=[groups] if several else [], unit=unit))
            note = None
    known = [rank for rank in schema.ranks if f"rank/{rank.id}/cpu" in schema.columns]
    curves = [Curve(f"rank/{rank.id}/cpu", _name(rank, several), "%", curve_color(k)) for k, rank in enumerate(known)]
    entries = [(curve.label, curve.color, "solid") for curve in curves[:NAMED]]
    title = "Ranks: CPU of each process, % of a core"
    parts += chart(page, "ranks-cpu", title, curves, note=note, entries=entries, height=LOW)
    return parts or missing(schema, "ranks", "Ranks")


def _rows(schema: Schema, part: str, several: bool) -> tuple[list[Row], list[Group]]:
    """The rows of a strip, the first rank highest, and the jobs that they belong to."""
    rows: list[Row] = []
    groups: list[Group] = []
    job = None
    going_on = any(rank.alive for rank in schema.ranks)
    for rank in reversed(schema.ranks):
        series = f"rank/{rank.id}/{part}"
        if series not in schema.columns:
            continue
        if rank.job != job:
            job = rank.job
            groups.append(Group(f"job {job}", str(job), len(rows), len(rows)))
        label = f"{_name(rank, several)}{'' if rank.alive else ' · ended'}"
        rows.append(Row(series, label, str(rank.number), hatched=going_on and not rank.alive))
        last = groups[-1]
        groups[-1] = Group(last.label, last.short, last.start, len(rows))
    return rows, groups


def _name(rank: Rank, several: bool) -> str:
    words = [f"job {rank.job}"] if several else []
    return " · ".join([*words, f"rank {rank.number}", *([rank.host] if rank.host else [])])


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
