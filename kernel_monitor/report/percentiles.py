"""How everything spread: of both sides of the change, of the other stretches, or of a session without a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..diagnose import allowed_cores, measure
from ..diagnose.model import Statistic
from ..diagnose.statistics import quantiles
from .markup import Html, el, folded, scrolled, section
from .words import amount, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store import Snapshot
    from .subject import Subject

MOST_FOLDED = 24
"""Stretches whose percentiles are shown at most, the newest; the table of stretches has the figures of all."""
BYTES = ("B", "B/s")
QUANTILES = ("min", "p50", "p90", "p95", "p99", "max")


def percentiles(subject: Subject) -> Html | None:
    """How every metric spread: both sides of the change beneath each other, every other stretch folded."""
    pair = [one for one in subject.pair if one.statistics]
    rest = [one for one in subject.analysis.stretches if one.statistics and one not in pair][-MOST_FOLDED:]
    if not pair and not rest:
        return _of_session(subject.snapshot)
    sides = [(subject.called(one.key), one.statistics) for one in pair]
    compared = _spreads(sides, "Percentiles of " + " and ".join(one.key for one in pair)) if pair else None
    others = [
        folded(
            f"{subject.called(one.key)}, {one.steps:,} steps",
            _spreads([(one.key, one.statistics)], f"Percentiles of {one.key}"),
        )
        for one in rest
    ]
    return section("percentiles", "Percentiles", _note(subject.snapshot), compared, *others)


def _of_session(snapshot: Snapshot) -> Html | None:
    """What the machine did all the time, where no loader delivered anything."""
    if not len(snapshot.time):
        return None
    found = measure(snapshot, None, -1.0, float(snapshot.time[-1]))
    told = tuple(
        Statistic(metric, label, "%", quantiles(values))
        for metric, label, values in (
            ("cpu", "CPU busy, mean of the cores", found.cpu),
            ("iowait", "CPU waiting for I/O, mean of the cores", found.iowait),
            ("gpu", "GPU utilisation", found.gpu),
            ("gpu_memory", "GPU memory", found.gpu_memory),
            ("memory", "Host memory", found.memory),
        )
        if len(values)
    )
    if not told:
        return None
    note = f"No loader delivered anything: all of the time. {_note(snapshot)}"
    return section("percentiles", "Percentiles", note, _spreads([("session", told)], "Percentiles of the session"))


def _note(snapshot: Snapshot) -> str:
    width = (snapshot.facts.get("recorded") or {}).get("bin_s")
    note = "By linear interpolation, as numpy.percentile gives them; n values each."
    if width:
        note += f" What was sampled, not timed by step, is in means over {float(width):.3g} s, which evens out peaks."
    allowed, cores = len(allowed_cores(snapshot.schema)), len(snapshot.schema.cpus)
    if allowed < cores:
        note += f" CPU: the {allowed} cores that this process may use."
    return note


def _spreads(sides: Sequence[tuple[str, Sequence[Statistic]]], label: str) -> Html:
    """A table with a row for each metric and side; the metrics in the order of the first.

    Args:
        sides: name and statistics of each.
        label: what a screen reader calls the table.
    """
    metrics = dict.fromkeys(one.metric for _, told in sides for one in told)
    bodies = []
    for metric in metrics:
        present = [(name, one) for name, told in sides for one in told if one.metric == metric]
        lines = []
        for k, (name, found) in enumerate(present):
            figures = [_figure(float(getattr(found.values, quantile)), found.unit) for quantile in QUANTILES]
            cells = [el("td", cell, class_="number") for cell in (f"{found.values.count:,}", *figures)]
            words = found.label if found.unit in BYTES else f"{found.label}, {found.unit}"
            head = el("th", words, scope="rowgroup", rowspan=str(len(present))) if k == 0 else None
            lines.append(el("tr", head, el("td", name) if len(sides) > 1 else None, *cells))
        bodies.append(el("tbody", *lines))
    heads = ["metric", *(["stretch"] if len(sides) > 1 else [])]
    top = [el("th", cell, scope="col") for cell in heads]
    top += [el("th", cell, scope="col", class_="number") for cell in ("n", *QUANTILES)]
    return scrolled(el("thead", el("tr", *top)), *bodies, label=label, kind="groups")


def _figure(value: float, unit: str) -> str:
    """Bytes bring their prefix and unit with them; the unit of everything else stands with its name."""
    return amount(value, unit) if unit in BYTES else number(value, unit)
