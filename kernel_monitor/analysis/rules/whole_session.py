"""Rules on a session as a whole: several ranks of one training, how the machine was used, where the time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ...store import Snapshot
from ..loops import trained
from ..results import Evidence, Finding, Segment
from ..segments import segments
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plainly, require

_SYSTEM = ("cpu", "iowait", "gpu", "gpu_memory", "memory", "received", "sent", "disk")


class Rank(NamedTuple):
    """One rank's newest segment: ms per step and of it the wait for data, and how many steps."""

    number: int
    step: float
    wait: float
    steps: int


def imbalance(session: Session, check: Check) -> Finding:
    world = session.snapshot.facts.get("world_size")
    if not session.others:
        more = f" of the {world} ranks" if world and int(world) > 1 else ", and no other was given"
        raise SignalMissing(f"the other ranks' sessions: this is one{more}")
    if not session.segments:
        raise SignalMissing(NO_DELIVERY)
    ranks = [_rank(session.snapshot, session.segments, 0)]
    ranks += [_rank(other, segments(other), place) for place, other in enumerate(session.others, start=1)]
    known = [rank for rank in ranks if rank is not None and rank.steps >= check["least"]]
    require(f"ranks with {check['least']:g} steps", len(known), 2)
    mean = sum(rank.step for rank in known) / len(known)
    slow, fast = max(known, key=lambda rank: rank.wait), min(known, key=lambda rank: rank.wait)
    late, early = max(known, key=lambda rank: rank.step), min(known, key=lambda rank: rank.step)
    waits, steps = (slow.wait - fast.wait) / mean, (late.step - early.step) / mean
    threshold, unit = 100 * check["difference"], "% of the mean step"
    wait_text = (
        f"Wait for data per step: {slow.wait:,.1f} ms on rank {slow.number}, {fast.wait:,.1f} ms on rank "
        f"{fast.number}, of a mean step of {mean:,.1f} ms ({len(known)} ranks)"
    )
    step_text = f"Whole step: {late.step:,.1f} ms on rank {late.number}, {early.step:,.1f} ms on rank {early.number}"
    worst = slow.number if waits >= steps else late.number
    advised = plainly(
        f"Every step of synchronous training lasts as long as its slowest rank: look at rank {worst} first "
        "(its machine's cores, its storage, its share of the data)."
    )
    return check.finding(
        max(waits, steps) > check["difference"],
        advised,
        Evidence(wait_text, 100 * waits, threshold, unit),
        Evidence(step_text, 100 * steps, threshold, unit),
        samples=sum(rank.steps for rank in known),
        times=len(known),
    )


def _rank(snapshot: Snapshot, made: Sequence[Segment], place: int) -> Rank | None:
    """The newest segment of the loader that delivered most steps; an evaluation does not count."""
    real = [one for one in trained(made) if not one.synthetic and one.steps and math.isfinite(one.wait)]
    if not real:
        return None
    steps: Counter[str] = Counter()
    for segment in real:
        steps[segment.loader] += segment.steps
    loader = steps.most_common(1)[0][0]
    newest = next(segment for segment in reversed(real) if segment.loader == loader)
    number = snapshot.facts.get("rank")
    return Rank(place if number is None else int(number), newest.step, newest.wait, newest.steps)


def system(session: Session, check: Check) -> Finding:
    if not session.segments:
        raise SignalMissing(NO_DELIVERY)
    evidence = []
    for segment in session.segments:
        spreads = []
        for found in segment.statistics:
            factor, unit = (1e6, "MB/s") if found.unit == "B/s" else (1.0, found.unit)
            p50, p95 = found.values.p50 / factor, found.values.p95 / factor
            if found.metric in _SYSTEM:
                spreads.append(f"{found.label} p50 {p50:,.1f}, p95 {p95:,.1f} {unit}")
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


RULES = (
    Rule(
        "rank-imbalance",
        "One rank waits longer than another",
        {
            "difference": Parameter(0.1, "of the mean step: by more than this waits or steps of two ranks differ"),
            "least": Parameter(20, "steps that each rank must have"),
        },
        "Compares the newest segments of all ranks' sessions. Abstains on one rank's alone.",
        "This project's.",
        of_session=imbalance,
    ),
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
