"""Percentiles of both sides of a switch, and the stretches of a session one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .measured import Floats, Measured, Table, measure
from .switches import Event, asked, settled, switches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUANTILES = (50, 95, 99)


@dataclass(frozen=True)
class Line:
    """One metric: its percentiles (`QUANTILES`) of each side in turn, and how many values they are of."""

    label: str
    unit: str
    percentiles: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """A stretch in which a loader used one backend, without the change-over at its start."""

    loader: str
    backend: str
    measured: Measured


def percentiles(*sides: Measured) -> list[Line]:
    """A line for each metric that every side has values of."""
    lines = []
    for label, unit, name in (
        ("CPU busy, mean of the cores", "%", "cpu"),
        ("CPU waiting for I/O, mean of the cores", "%", "iowait"),
        ("GPU utilisation", "%", "gpu"),
        ("GPU memory", "%", "gpu_memory"),
        ("Host memory", "%", "memory"),
        ("Images delivered in a second", "images/s", "per_second"),
        ("Data wait per step", "ms", "wait"),
        ("Whole step", "ms", "step"),
    ):
        columns: list[Floats] = [getattr(side, name) for side in sides]
        if all(len(column) for column in columns):
            found = tuple(tuple(float(q) for q in np.percentile(column, QUANTILES)) for column in columns)
            lines.append(Line(label, unit, found, tuple(len(column) for column in columns)))
    return lines


def segments(table: Table, events: Sequence[Event], loaders: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Every stretch between two switches of a loader, in the order of time; stretches without a delivery are left out.

    Args:
        table: rows, oldest first.
        events: the store's events.
        loaders: the loaders' states; a loader that never switched has one stretch, of its present backend.
    """
    end = float(table.time[-1]) if len(table.time) else 0.0
    found = []
    done = switches(events)
    names = {str(state["id"]): str(state["backend"]) for state in loaders}
    for event in done:
        names.setdefault(str(event["loader"]), str(event["target"]))
    for loader, backend in names.items():
        own = [event for event in done if event["loader"] == loader]
        starts = [-1.0, *(settled(table, event) for event in own)]
        ends = [*(asked(event) for event in own), end]
        used = [str(own[0]["source"]) if own else backend, *(str(event["target"]) for event in own)]
        for start, stop, one in zip(starts, ends, used, strict=True):
            if start < stop:
                found.append(Segment(loader, one, measure(table, loader, start, stop)))
    return sorted((one for one in found if one.measured.samples > 0), key=lambda one: one.measured.start)
