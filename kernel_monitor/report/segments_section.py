"""What the templates show of the segments: where a step's time went, how everything spread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..analysis import allowed_cores
from ..analysis.frames import Frames
from ..analysis.results import Segment, Statistic
from ..analysis.statistics import quantiles
from .formats import is_known, percent
from .subject import Subject, statistic

PARTS = {
    "wait": "data wait",
    "copy": "copy to device",
    "compute": "compute",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
"""The parts of a step in the order in which they are drawn; each has a colour of its name in `page.css`."""
LETTER, NARROW = 6.4, 640
"""Pixels of a letter, and of the narrowest bar whose parts are named in it (narrower screens leave the names out)."""
MOST_SHARES = 3  # bars whose shares stand with the colours; those of more are in a table
HIGH, LEFT, RIGHT, BASE = 14.0, 44.0, 636.0, 168.0  # edges of the histogram's frame, in its own units
TENTHS = 10
MOST_FOLDED = 24
"""Segments whose percentiles are shown at most, the newest; the table of segments has the figures of all."""
QUANTILES = ("min", "p50", "p90", "p95", "p99", "max")
Sides = list[tuple[str, "Sequence[Statistic]"]]


def stack(shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """The pieces of a bar from left to right: `part`, `text`, `start` and `width` in %, `has_room` for its text."""
    pieces, at = [], 0.0
    for part, name in PARTS.items():
        share = shares.get(part, 0.0)
        if share > 0:
            text = f"{name} {percent(share)}"
            has_room = NARROW * share > LETTER * len(text) + 16
            pieces.append({"part": part, "text": text, "start": at, "width": 100 * share, "has_room": has_room})
            at += 100 * share
    return pieces


def legend(bars: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str]]:
    """Each part in some bar, its name, and its shares in the bars one after the other, unless they are many."""
    found = []
    for part, name in PARTS.items():
        shares = [shares.get(part, 0.0) for shares in bars]
        if any(share > 0 for share in shares):
            figures = " → ".join(percent(share) for share in shares) if len(shares) <= MOST_SHARES else ""
            found.append((part, name, figures))
    return found


def table(subject: Subject) -> dict[str, Any] | None:
    """Each segment with what it delivered, and each change between two of them."""
    return {} if subject.analysis.segments else None


def phases(subject: Subject) -> dict[str, Any] | None:
    shown = [segment for segment in subject.analysis.segments if segment.phases and segment.step > 0]
    if not shown:
        return None
    times = [{"wait": segment.wait, **segment.phases} for segment in shown]
    known = [{part: value for part, value in parts.items() if is_known(value)} for parts in times]
    shares = [{part: value / (sum(parts.values()) or 1.0) for part, value in parts.items()} for parts in known]
    return {
        "shown": [(segment, *rest) for segment, *rest in zip(shown, times, map(stack, shares), strict=True)],
        "names": {part: name for part, name in PARTS.items() if any(part in parts for parts in times)},
        "legend": legend(shares),
    }


def histograms(subject: Subject) -> dict[str, Any] | None:
    """How busy the GPUs were in each segment: both sides of the change over each other, all of them as a table."""
    shown = [segment for segment in subject.analysis.segments if segment.gpu_histogram]
    if not shown:
        return None
    drawn = [segment for segment in subject.pair if segment.gpu_histogram] or shown[-1:]

    def samples(segment: Segment) -> int:
        found = statistic(segment, "gpu")
        return found.values.count if found else 0

    def mode(segment: Segment) -> str:
        tenths = _tenths(segment)
        k = tenths.index(max(tenths))
        return f"{10 * k} to {10 * k + 10} % ({percent(tenths[k])} of the samples)"

    top = max(max(segment.gpu_histogram) for segment in drawn) or 1.0
    distance = subject.change.histogram_distance if subject.change is not None and len(drawn) == 2 else math.nan
    return {
        "distance": distance,
        "sides": [
            {
                "name": subject.called(segment.key),
                "mode": mode(segment),
                "samples": samples(segment),
                "outline": outline(segment.gpu_histogram, top),
            }
            for segment in drawn
        ],
        "top": top,
        "rows": [(subject.called(segment.key), samples(segment), _tenths(segment)) for segment in shown],
    }


def outline(shares: Sequence[float], top: float) -> str:
    """A histogram whose highest bin may be `top`, as an SVG path from the left to the right of the frame."""
    wide = (RIGHT - LEFT) / max(len(shares), 1)
    high = (BASE - HIGH) / top
    return "".join(f"V{BASE - share * high:.1f}H{LEFT + (k + 1) * wide:.1f}" for k, share in enumerate(shares))


def _tenths(segment: Segment) -> list[float]:
    each = max(len(segment.gpu_histogram) // TENTHS, 1)
    return [sum(segment.gpu_histogram[k * each : (k + 1) * each]) for k in range(TENTHS)]


def percentiles(subject: Subject) -> dict[str, Any] | None:
    """How every metric spread: both sides of the change beneath each other, every other segment folded."""
    schema = subject.snapshot.schema
    pair = [segment for segment in subject.pair if segment.statistics]
    rest = [segment for segment in subject.analysis.segments if segment.statistics and segment not in pair]
    sides: Sides = [(subject.called(segment.key), segment.statistics) for segment in pair]
    label = "Percentiles of " + " and ".join(segment.key for segment in pair)
    if not pair and not rest:
        whole = _of_session(subject)
        if not whole:
            return None
        sides, label = [("session", whole)], "Percentiles of the session"
    return {
        "sides": sides,
        "label": label,
        "folded": rest[-MOST_FOLDED:],
        "segments": bool(pair or rest),
        "metrics": _by_metric,
        "quantiles": QUANTILES,
        "bin_s": subject.bin_s,
        "allowed": len(allowed_cores(schema)),
        "cores": len(schema.cpus),
    }


def _by_metric(sides: Sides) -> list[list[tuple[str, Statistic]]]:
    """For each metric, in the order of the first side, the sides that have it."""
    metrics = dict.fromkeys(found.metric for _, statistics in sides for found in statistics)
    return [
        [(name, found) for name, statistics in sides for found in statistics if found.metric == metric]
        for metric in metrics
    ]


def _of_session(subject: Subject) -> list[Statistic]:
    """What the machine did all the time, where no loader delivered anything."""
    snapshot = subject.snapshot
    if not len(snapshot.time):
        return []
    frames = Frames(snapshot)
    return [
        Statistic(metric, label, "%", quantiles(values))
        for metric, label, values in (
            ("cpu", "CPU busy, mean of the cores", frames.cpu),
            ("iowait", "CPU waiting for I/O, mean of the cores", frames.mean("cpu", "iowait")),
            ("gpu", "GPU utilisation", frames.mean("gpu", "utilisation")),
            ("gpu_memory", "GPU memory", frames.mean("gpu", "memory")),
            ("memory", "Host memory", frames.series("memory/percent")),
        )
        if bool(np.isfinite(values).any())
    ]
