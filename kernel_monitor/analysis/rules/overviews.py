"""Rules that never fire: how the machine was used, and where the steps' time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..results import Evidence
from .rule import NO_DELIVERY, Rule, SignalMissing

if TYPE_CHECKING:
    from ..results import Finding, Statistic
    from .rule import Check, Session

SYSTEM = ("cpu", "iowait", "gpu", "gpu_memory", "memory", "received", "sent", "disk")


def system(session: Session, check: Check) -> Finding:
    if not session.segments:
        raise SignalMissing(NO_DELIVERY)
    evidence = []
    for segment in session.segments:
        spreads = [_percentiles(statistic) for statistic in segment.statistics if statistic.metric in SYSTEM]
        text = f"{segment.key}: " + ("; ".join(spreads) or "nothing was measured")
        evidence.append(Evidence(text, start=segment.start, end=segment.end))
    return check.quiet(*evidence, samples=len(session.frames.time))


def framework(session: Session, check: Check) -> Finding:
    timed = [segment for segment in session.segments if segment.step > 0]
    if not timed:
        raise SignalMissing(NO_DELIVERY)
    evidence = []
    for segment in timed:
        parts = {"wait": segment.wait, **(segment.phases or {"rest": segment.step - segment.wait})}
        shares = ", ".join(f"{name} {100 * time / segment.step:.0f} %" for name, time in parts.items())
        words = "" if segment.phases else " (the rest is told apart by monitor.watch(model, optimizer))"
        text = f"{segment.key}: of {segment.step:,.1f} ms a step ({segment.steps:,} steps) {shares}{words}"
        waits = 100 * segment.wait / segment.step
        evidence.append(Evidence(text, waits, unit="%", start=segment.start, end=segment.end))
    return check.quiet(*evidence, samples=sum(segment.steps for segment in timed))


def _percentiles(statistic: Statistic) -> str:
    factor, unit = (1e6, "MB/s") if statistic.unit == "B/s" else (1.0, statistic.unit)
    p50, p95 = statistic.values.p50 / factor, statistic.values.p95 / factor
    return f"{statistic.label} p50 {p50:,.1f}, p95 {p95:,.1f} {unit}"


RULES = (
    Rule(
        "system-usage",
        "How the machine was used",
        {},
        "Never fires: medians and 95th percentiles of CPU, I/O wait, GPU, memories, network and disks for each "
        "segment. All percentiles are in the segments' tables.",
        "SageMaker Debugger's OverallSystemUsage.",
        of_session=system,
    ),
    Rule(
        "framework-metrics",
        "Where the steps' time went",
        {},
        "Never fires: the shares of wait, copy, forward, backward, optimizer and other for each segment. Shares of "
        "operators come with *Profile 10 steps*.",
        "SageMaker Debugger's OverallFrameworkMetrics.",
        of_session=framework,
    ),
)
