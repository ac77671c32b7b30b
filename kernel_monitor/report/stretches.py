"""The stretches between changes: their counts and rates, what each change brought, where a step's time went."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .markup import Html, el, join, section, table
from .pictures import PARTS, bar, histograms, key
from .subject import statistic
from .verdict import share
from .words import clock, duration, number

if TYPE_CHECKING:
    from ..diagnose.model import Change, Stretch
    from .subject import Subject

BEGAN = {"start": "start", "switch": "switch", "knobs": "knobs", "mark": "mark"}
TENTHS = 10


def stretches(subject: Subject) -> Html | None:
    """Each stretch with what it delivered, and each change between two of them."""
    found = subject.analysis.stretches
    if not found:
        return None
    origin = subject.snapshot.schema.origin
    head = ["stretch", "from", "counted", "steps", "left out", "batches", "samples", "images/s", "data wait", "step",
            "CPU p95", "GPU p50", "set to"]  # fmt: skip
    rows = []
    for one in found:
        cpu, gpu = statistic(one, "cpu"), statistic(one, "gpu")
        rows.append(
            [
                subject.called(one.key) + (" (replayed)" if one.synthetic else ""),
                f"{clock(origin + max(one.start, 0.0), subject.where)}, {BEGAN.get(one.began_by, one.began_by)}",
                duration(one.seconds),
                f"{one.steps:,}",
                f"{one.left_out:,}",
                f"{one.batches:,}",
                f"{one.samples:,}",
                number(one.rate),
                _with_unit(one.wait, "ms"),
                _with_unit(one.step, "ms"),
                f"{cpu.values.p95:.0f} %" if cpu else "-",
                f"{gpu.values.p50:.0f} %" if gpu else "-",
                ", ".join(f"{name} {value}" for name, value in one.knobs.items()) or "-",
            ]
        )
    note = (
        "Counted while the loader was delivering; pauses of the loop and change-overs belong to no stretch. Left out: "
        "steps of warm-up and profiling. Wait and step are means over the steps."
    )
    return section(
        "stretches", "Stretch by stretch", note, table(head, rows, numbers=range(2, 12), label="Stretches"),
        _changes(subject),
    )  # fmt: skip


def _changes(subject: Subject) -> Html | None:
    """What each change brought, with why it may not be taken at face value."""
    rows = []
    for one in subject.analysis.changes:
        sides = [subject.stretches.get(key) for key in (one.before, one.after)]
        counts = " → ".join(f"{side.steps:,}" if side else "?" for side in sides)
        rows.append(
            [
                f"{subject.called(one.before)} → {subject.called(one.after)}",
                f"{one.faster:.2f} ×" if math.isfinite(one.faster) else "-",
                _points(one.saved),
                counts,
                number(one.histogram_distance),
                _said(one),
                "; ".join(one.caveats) or "-",
            ]
        )
    if not rows:
        return None
    head = ["change", "images/s", "step time saved", "steps", "distance of GPU histograms", "predicted", "mind"]
    return join(el("h3", "What each change brought"), table(head, rows, numbers=range(1, 5), label="Changes"))


def _said(change: Change) -> str:
    return share(change.predicted) if change.predicted is not None else "-"


def _points(value: float) -> str:
    return f"{100 * value:.1f} %".replace("-", "−") if math.isfinite(value) else "-"


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}" if math.isfinite(value) else "-"


def phases(subject: Subject) -> Html | None:
    """Where a step's time went, stretch by stretch."""
    shown = [one for one in subject.analysis.stretches if one.phases and one.step > 0]
    if not shown:
        return None
    lines, rows, sides = [], [], []
    names = [part for part in PARTS if part == "wait" or any(part in one.phases for one in shown)]
    for one in shown:
        parts = {"wait": one.wait, **one.phases}
        of = sum(value for value in parts.values() if math.isfinite(value)) or 1.0
        shares = {part: value / of for part, value in parts.items() if math.isfinite(value)}
        sides.append(shares)
        words = ", ".join(f"{PARTS.get(part, part)} {100 * value:.0f} %" for part, value in shares.items())
        where = "times of the GPU" if one.on_device else "times of the host"
        lines.append(
            el(
                "div",
                el("p", el("b", subject.called(one.key)), el("span", where), class_="line"),
                bar(shares, f"Share of a step's time: {words}"),
            )
        )
        cells = [_with_unit(parts.get(part, math.nan), "ms") for part in names]
        rows.append([subject.called(one.key), f"{one.steps:,}", *cells, _with_unit(one.step, "ms")])
    head = ["stretch", "steps", *(PARTS[part] for part in names), "whole step"]
    note = "Means over the steps. Over time they are among the charts; how they spread is among the percentiles."
    body = join(
        el("div", *lines, key(sides), class_="bars"), table(head, rows, numbers=range(1, len(head)), label="Phases")
    )
    return section("phases", "Phases of a step", note, body)


def gpu_histograms(subject: Subject) -> Html | None:
    """How busy the GPUs were in each stretch: both sides of the change over each other, all of them as a table."""
    shown = [one for one in subject.analysis.stretches if one.gpu_histogram]
    if not shown:
        return None
    sides = [one for one in subject.pair if one.gpu_histogram] or shown[-1:]
    names = [subject.called(one.key) for one in sides]
    words = "Share of the samples in bins of GPU utilisation: " + "; ".join(
        f"{name} mostly {_mode(one)}" for name, one in zip(names, sides, strict=True)
    )
    entries = [
        el("li", el("svg", el("rect", width="14", height="12", class_=kind), class_="swatch histogram", width="14",
                    height="12", aria_hidden="true"), f"{name}, {_gpu_count(one):,} samples")
        for name, one, kind in zip(names, sides, ("before", "after"), strict=False)
    ]  # fmt: skip
    head = ["stretch", "samples", *(f"{10 * k}–{10 * k + 10} %" for k in range(TENTHS))]
    rows = [
        [subject.called(one.key), f"{_gpu_count(one):,}", *(f"{100 * value:.1f} %" for value in _tenths(one))]
        for one in shown
    ]
    note = "Share of the GPUs' samples, all GPUs together: drawn in bins of 2 %, in the table of 10 %."
    distance = subject.change.histogram_distance if subject.change is not None else math.nan
    if math.isfinite(distance) and len(sides) == 2:
        note += f" The two drawn are {distance:.2f} apart (0 equal, 1 without anything in common)."
    picture = histograms([(name, one.gpu_histogram) for name, one in zip(names, sides, strict=True)], words)
    body = join(
        el("figure", picture, el("ul", *entries, class_="key")),
        table(head, rows, numbers=range(1, len(head)), label="GPU utilisation"),
    )
    return section("histograms", "GPU utilisation", note, body)


def _gpu_count(stretch: Stretch) -> int:
    found = statistic(stretch, "gpu")
    return found.values.count if found else 0


def _tenths(stretch: Stretch) -> list[float]:
    """The histogram in bins of 10 %."""
    each = max(len(stretch.gpu_histogram) // TENTHS, 1)
    return [sum(stretch.gpu_histogram[k * each : (k + 1) * each]) for k in range(TENTHS)]


def _mode(stretch: Stretch) -> str:
    tenths = _tenths(stretch)
    k = max(range(len(tenths)), key=tenths.__getitem__)
    return f"{10 * k} to {10 * k + 10} % ({100 * tenths[k]:.0f} % of the samples)"
