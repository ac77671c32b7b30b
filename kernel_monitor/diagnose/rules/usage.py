"""Rules that only tell: how the machine was used, and where the steps' time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import Evidence
from .base import NO_DELIVERY, Rule

if TYPE_CHECKING:
    from ..model import Finding, Statistic
    from .base import Asked, Session

SYSTEM = ("cpu", "iowait", "gpu", "gpu_memory", "memory", "received", "sent", "disk")


def system(session: Session, asked: Asked) -> Finding:
    """Percentiles of what the machine did, stretch by stretch."""
    if not session.stretches:
        return asked.abstained(NO_DELIVERY)
    evidence = []
    for one in session.stretches:
        told = [_percentiles(each) for each in one.statistics if each.metric in SYSTEM]
        text = f"{one.key}: " + ("; ".join(told) or "nothing was measured")
        evidence.append(Evidence(text, start=one.start, end=one.end))
    return asked.quiet(*evidence, samples=len(session.frames.time))


def framework(session: Session, asked: Asked) -> Finding:
    """Shares of the step by its parts, stretch by stretch."""
    timed = [one for one in session.stretches if one.step > 0]
    if not timed:
        return asked.abstained(NO_DELIVERY)
    evidence = []
    for one in timed:
        parts = {"wait": one.wait, **one.phases} if one.phases else {"wait": one.wait, "rest": one.step - one.wait}
        shares = ", ".join(f"{name} {100 * time / one.step:.0f} %" for name, time in parts.items())
        words = "" if one.phases else " (the rest is told apart by monitor.watch(model, optimizer))"
        text = f"{one.key}: of {one.step:,.1f} ms a step ({one.steps:,} steps) {shares}{words}"
        evidence.append(Evidence(text, 100 * one.wait / one.step, unit="%", start=one.start, end=one.end))
    return asked.quiet(*evidence, samples=sum(one.steps for one in timed))


def _percentiles(told: Statistic) -> str:
    factor, unit = (1e6, "MB/s") if told.unit == "B/s" else (1.0, told.unit)
    return f"{told.label} p50 {told.values.p50 / factor:,.1f}, p95 {told.values.p95 / factor:,.1f} {unit}"


RULES = (
    Rule(
        "system-usage",
        "How the machine was used",
        {},
        "Never fires: medians and 95th percentiles of CPU, I/O wait, GPU, memories, network and disks for each "
        "stretch. All percentiles are in the stretches' tables.",
        "SageMaker Debugger's OverallSystemUsage.",
        of_session=system,
    ),
    Rule(
        "framework-metrics",
        "Where the steps' time went",
        {},
        "Never fires: the shares of wait, copy, forward, backward, optimizer and other for each stretch. Shares of "
        "operators come with *Profile 10 steps*.",
        "SageMaker Debugger's OverallFrameworkMetrics.",
        of_session=framework,
    ),
)
