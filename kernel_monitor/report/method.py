"""How each figure of the page was obtained, so that a colleague can judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..steps.records import ON_DEVICE
from .markup import Html, el, section

if TYPE_CHECKING:
    from ..store import Snapshot
    from .subject import Subject


WORDS = {
    "CPU of a stretch": "mean of the cores that this process may use, a value for each sample.",
    "GPU utilisation": "NVML's: share of a window (1/6 to 1 s) in which any kernel ran. It says nothing about how much "
    "of the GPU the kernel used; the GPU counters do, where there are some.",
    "Images, batches": "counted at the loop as they were delivered, never from a plan. A rate is images over the time "
    "in which the loader was delivering.",
    "The strip": "both sides of the newest switch, at most the last and the first minute, without the change-over "
    "between them. Stretches are counted whole, so that their figures may differ from the strip's.",
    "Percentiles": "over the samples or steps of a stretch, by linear interpolation.",
    "Distance of histograms": "half the sum of the absolute differences of the bins: 0 equal, 1 disjoint.",
    "Step time saved": "1 − mean step after / mean step before; negative where steps took longer.",
    "Verdict, rules": "by fixed thresholds that stand with each finding. What lacks its signal says so and is not "
    "guessed.",
    "Predicted gain": "from what was measured before the change; the measured one is of the stretch behind it.",
    "Cost": "price per hour / 3600 × seconds; the price is the one that was set for this session.",
}
"""What is the same in every report."""


def method(subject: Subject) -> Html:
    """A line for each kind of figure."""
    snapshot = subject.snapshot
    words = {
        "CPU, memory, disk, network": _sampled(snapshot),
        "Steps and phases": _phases(snapshot),
        **WORDS,
    }
    lines = [el("div", el("dt", term), el("dd", text)) for term, text in words.items()]
    return section("method", "How each figure was obtained", None, el("dl", *lines, class_="method"))


def _sampled(snapshot: Snapshot) -> str:
    """How often, and what a row is."""
    told = snapshot.facts.get("recorded") or {}
    width = told.get("bin_s")
    if width:
        some = f", from one in {told['one_in']} minutes or so of it" if (told.get("one_in") or 1) > 1 else ""
        return (
            f"sampled by a process of its own beside the kernel; {int(told.get('rows') or 0):,} samples were recorded "
            f"and are means over bins of {float(width):.3g} s here{some}, so that shorter peaks are evened out."
        )
    every = f"every {snapshot.schema.interval * 1000:g} ms"
    return f"sampled {every} by a process of its own beside the kernel; each value is of the time since the one before."


def _phases(snapshot: Snapshot) -> str:
    table = snapshot.steps
    if not len(table):
        return (
            "no single step was kept; wait and step are means over the samples of the session. "
            "Phases need monitor.watch(model, optimizer)."
        )
    count = f"{len(table):,} single steps" + (f", {table.dropped:,} more were not kept" if table.dropped else "")
    rows = table.rows
    timed = np.isfinite(rows["forward"]) | np.isfinite(rows["copy"]) | np.isfinite(rows["backward"])
    if not bool(timed.any()):
        return f"{count}; the wait for data and the whole step by the host's clock. No phase was measured."
    device = int(np.count_nonzero(rows["flags"][timed] & ON_DEVICE))
    by = "CUDA events, without a synchronisation" if device else "the host's clock"
    if 0 < device < int(timed.sum()):
        by += f" ({device:,} of {int(timed.sum()):,}), the rest by the host's clock"
    return f"{count}; wait and whole step by the host's clock, phases by {by}. What no phase covers is called other."
