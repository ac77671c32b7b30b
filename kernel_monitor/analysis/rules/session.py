"""Rules on a session as a whole: how the machine was used, where the time went, and the ranks of its jobs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import SessionError
from ...rank import Rank
from ...store import Snapshot
from ..frames import Floats, Frames
from ..job_figures import ranks_by_job, scaling
from ..loops import training_segments
from ..results import Advice, Evidence, Finding, Segment
from ..segments import segments
from ..slow_rank import Cause, SlowRank, slow_rank
from ..step_times import distance, histogram
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plain_advice, require, span

_SYSTEM = ("cpu", "iowait", "gpu", "gpu_memory", "memory", "received", "sent", "disk")


class _RankSegment(NamedTuple):
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
    advised = plain_advice(
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


def _rank(snapshot: Snapshot, made: Sequence[Segment], place: int) -> _RankSegment | None:
    """Return the newest segment of the loader that delivered most steps; an evaluation does not count."""
    real = [one for one in training_segments(made) if not one.synthetic and one.steps and math.isfinite(one.wait)]
    if not real:
        return None
    steps: Counter[str] = Counter()
    for segment in real:
        steps[segment.loader] += segment.steps
    loader = steps.most_common(1)[0][0]
    newest = next(segment for segment in reversed(real) if segment.loader == loader)
    number = snapshot.facts.get("rank")
    return _RankSegment(place if number is None else int(number), newest.step, newest.wait, newest.steps)


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
        words = "" if segment.phases else " (monitor.watch(model, optimizer) measures the parts of the rest)"
        text = f"{segment.key}: of {segment.step:,.1f} ms a step ({segment.steps:,} steps) {shares}{words}"
        waits = 100 * segment.wait / segment.step
        evidence.append(Evidence(text, waits, unit="%", start=segment.start, end=segment.end))
    return check.quiet(*evidence, samples=sum(segment.steps for segment in timed))


_USAGE_RULES = (
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


# ---- Rules on the ranks of a job that a session saw: one of them holds up the others, or their steps follow a
# pattern.

ADVICE: dict[Cause, str] = {
    "data": "Look at the data of rank {rank} first: its storage, its loader's workers, its share of the samples.",
    "clock": "Look at the GPU of rank {rank} first: its heat, its power limit, who else uses it.",
    "cpu": "Look at the host of rank {rank} first: what else runs on it, and how many workers its loaders have.",
    "compute": "Look at what rank {rank} computes first: the shapes of its batches, other programs on its machine.",
}


def slowest(session: Session, check: Check) -> Finding:
    frames = session.frames
    ranks = [rank for rank in session.snapshot.schema.ranks if rank.steps]
    if len(ranks) < 2:
        raise SignalMissing("steps of two ranks: none joined" if not ranks else "steps of two ranks: one joined")
    jobs = defaultdict(list)
    for rank in ranks:
        jobs[rank.job].append(rank)
    found: Counter[tuple[str, Cause]] = Counter()
    windows: Counter[int] = Counter()
    seen: dict[tuple[str, Cause], list[tuple[float, SlowRank]]] = defaultdict(list)
    for job, own in jobs.items():
        steps = np.stack([frames.series(f"rank/{rank.id}/step") for rank in own])
        times = frames.time[np.isfinite(steps).sum(axis=0) >= 2]
        if not len(times):
            continue
        for start in np.arange(times[0], times[-1] - check["window"] / 2, check["window"]):
            windows[job] += 1
            slow = slow_rank(frames, own, float(start), float(start + check["window"]), check["difference"])
            if slow is not None:
                key = (slow.rank.id, slow.cause)
                found[key] += 1
                seen[key].append((float(start), slow))
    require("windows in which two ranks stepped", sum(windows.values()), check["least"])
    evidence = []
    advised: list[Advice] = []
    for key, count in found.most_common():
        slow = seen[key][len(seen[key]) // 2][1]
        share = count / windows[slow.rank.job]
        if share >= check["share"]:
            lost = float(np.median([entry.lost for _, entry in seen[key]]))
            first, last = seen[key][0][0], seen[key][-1][0] + check["window"]
            text = (
                f"Rank {slow.rank.number} of job {slow.rank.job} was {lost:,.1f} ms per step later than the others in "
                f"{count} of {windows[slow.rank.job]} windows: {slow.why}"
            )
            threshold = 100 * check["difference"]
            evidence.append(Evidence(text, 100 * lost / slow.step, threshold, "% of the step", share, first, last))
            advised += plain_advice(ADVICE[slow.cause].format(rank=slow.rank.number))
    return check.finding(
        bool(evidence), advised, *evidence, samples=sum(windows.values()), times=sum(found.values()) if evidence else 1
    )


def periods(session: Session, check: Check) -> Finding:
    ranks = [rank for rank in session.snapshot.schema.ranks if rank.steps]
    if not ranks:
        raise SignalMissing("steps of ranks: none joined")
    seen: dict[int, dict[str, Any]] = {}
    for event in session.snapshot.events:
        if event["kind"] == "step-period":
            seen.setdefault(event["job"], event)
    evidence = [
        Evidence(event["message"], event["steps"], unit="steps", start=event["time"]) for event in seen.values()
    ]
    advised = plain_advice(
        "Gradients summed over several batches follow a pattern on purpose; batch shapes that alternate, memory given "
        "back, or synchronisations every few steps do not."
    )
    return check.finding(bool(evidence), advised, *evidence, samples=len(ranks), times=len(evidence) or 1)


_SLOW_RANK_RULES = (
    Rule(
        "slow-rank",
        "One rank holds up the others",
        {
            "difference": Parameter(0.05, "of the step: by more than this a rank's own time exceeds the others'"),
            "window": Parameter(5.0, "seconds of each window that is judged by itself"),
            "share": Parameter(0.2, "of a job's windows in which the same rank must be late for the same reason"),
            "least": Parameter(1, "windows in which two ranks must have stepped"),
        },
        "Compares the ranks that sent their steps to this session. The late rank is the one that waits least in the "
        "collective: its own time is the wait for data, copy, forward and optimizer; "
        "without phases only the wait is known to be its own. Its GPU's clock, below the others' of that model, or its "
        "host's full cores are named where they are measured and differ from the others'. A slow link delays all alike "
        "and is not named. Abstains without two ranks; names none where ranks merely wait for each other.",
        "This project's.",
        of_session=slowest,
    ),
    Rule(
        "rank-step-period",
        "The steps of ranks follow a pattern",
        {},
        "Fires for each job whose steps followed a pattern of 2 to 8 steps. A recording has no single steps of ranks: "
        "the pattern is searched for while the job runs: in the newest 48 to 80 steps of each rank, as by "
        "`step-period`, and found twice in a row. Names the phase, and the rank if it is one rank's. Abstains without "
        "steps of ranks.",
        "This project's, as `step-period`.",
        of_session=periods,
    ),
)


# ---- Rules on what the ranks of a job bring: how evenly they share the work, and how much each adds.

_CHANCE = 1.25  # times the distance that two samples of one distribution have on average


def shares(session: Session, check: Check) -> Finding:
    frames = session.frames
    jobs: dict[int, list[Rank]] = defaultdict(list)
    for rank in session.snapshot.schema.ranks:
        jobs[rank.job].append(rank)
    if max(map(len, jobs.values()), default=0) < 2:
        raise SignalMissing(f"two ranks of a job: {len(session.snapshot.schema.ranks)} joined")
    judged, evidence = 0, []
    advised: list[Advice] = []
    for job, ranks in jobs.items():
        for found, advice in (_samples(frames, job, ranks, check), _gpus(frames, job, ranks, check)):
            judged += found is not None
            if found is not None and found.value > found.threshold:
                evidence.append(found)
                advised += plain_advice(advice)
    require("jobs with enough steps or readings of GPUs", judged, 1)
    return check.finding(bool(evidence), advised, *evidence, samples=judged, times=max(1, len(evidence)))


def _samples(frames: Frames, job: int, ranks: Sequence[Rank], check: Check) -> tuple[Evidence | None, str]:
    """Return samples of each rank while all of them delivered or waited."""
    advice = (
        "Give every rank as many samples: a DistributedSampler pads or drops what does not divide, and a batch of the "
        "same size on each rank makes their steps equally long."
    )
    known = [rank for rank in ranks if np.isfinite(frames.series(f"rank/{rank.id}/images")).any()]
    if len(known) < 2:
        return None, advice
    rates = np.stack([frames.series(f"rank/{rank.id}/images") for rank in known])
    steps = np.stack([frames.series(f"rank/{rank.id}/step") for rank in known])
    rows = np.isfinite(rates).all(axis=0)
    window = np.where(rows, frames.window, 0.0)
    many = np.nansum(window / np.maximum(1e-3 * steps, 1e-6), axis=1)  # steps of each rank, about
    if many.max() < check["least"]:
        return None, advice
    counts = (np.nan_to_num(rates) * window).sum(axis=1)
    most, mean = int(np.argmax(counts)), float(counts.mean())
    if mean <= 0:
        return None, advice
    least = int(np.argmin(counts))
    text = (
        f"Job {job}: about {counts[most]:,.0f} samples on rank {known[most].number}, {counts[least]:,.0f} on rank "
        f"{known[least].number}, {mean:,.0f} on the mean of {len(known)} ranks, while all of them ran"
    )
    value, threshold = 100 * (counts[most] / mean - 1), 100 * check["samples"]
    return Evidence(text, value, threshold, "% above the mean", **span(frames.time[rows])), advice


def _gpus(frames: Frames, job: int, ranks: Sequence[Rank], check: Check) -> tuple[Evidence | None, str]:
    """Return how far the utilisation of one rank's GPU lies from that of the others'."""
    advice = (
        "Compare what the ranks compute: unequal batches, or parts of a model of unequal size, keep some GPUs busier "
        "than others."
    )
    series: dict[int, Floats] = {rank.number: frames.series(f"rank/{rank.id}/gpu") for rank in ranks}
    series = {number: values for number, values in series.items() if np.isfinite(values).any()}
    if len(series) < 2:
        return None, advice
    rows: npt.NDArray[np.bool_] = np.logical_and.reduce([np.isfinite(values) for values in series.values()])
    seconds = float(frames.window[rows].sum())
    if seconds < check["seconds"]:
        return None, advice
    found = {number: _apart(series, number, rows, seconds) for number in series}
    most = max(found, key=lambda number: found[number])
    text = (
        f"Job {job}: the utilisation of rank {most}'s GPU lies {found[most]:.2f} from that of the other "
        f"{len(series) - 1}, beyond chance (histograms; 0: equal, 1: nothing in common)"
    )
    return Evidence(text, found[most], check["distance"], "", **span(frames.time[rows])), advice


def _apart(series: Mapping[int, Floats], number: int, rows: npt.NDArray[np.bool_], seconds: float) -> float:
    """Return the distance of one rank's histogram to that of all others together, less what chance makes of it."""
    own = np.array(histogram(series[number][rows]))
    others = np.array(histogram(np.concatenate([values[rows] for key, values in series.items() if key != number])))
    # A GPU's neighbouring readings are alike: one a second counts. Two shares of n readings each with the probability p
    # lie sqrt(2 / pi) * sqrt(p (1 - p) (1 / n + 1 / m)) apart on average.
    pooled = (own + others) / 2
    spread = 1 / seconds + 1 / (seconds * (len(series) - 1))
    chance = 0.5 * float(np.sqrt(2 / np.pi * pooled * (1 - pooled) * spread).sum())
    return max(0.0, distance(tuple(own), tuple(others)) - _CHANCE * chance)


def efficiency(session: Session, check: Check) -> Finding:
    jobs = [job for job, ranks in ranks_by_job(session.snapshot).items() if len(ranks) > 1]
    if not jobs:
        raise SignalMissing("steps of a job of several ranks: none joined")
    found, missing = [], ""
    for job in jobs:
        try:
            found.append(scaling(session.snapshot, job))
        except SessionError as error:
            missing = str(error)
    if not found:
        raise SignalMissing(missing)
    low = [each for each in found if each.efficiency < check["efficiency"]]
    evidence = [
        Evidence(each.sentence.removesuffix("."), 100 * each.efficiency, 100 * check["efficiency"], "%")
        for each in low or found
    ]
    advised = plain_advice(
        "Each further rank brings less than the first: look at what all of them share (storage, cores, the network of "
        "the gradients) and at larger batches on each, which average less often."
    )
    return check.finding(bool(low), advised, *evidence, samples=len(found), times=len(low) or 1)


_SHARE_RULES = (
    Rule(
        "rank-shares",
        "The ranks share the work unevenly",
        {
            "samples": Parameter(0.1, "of the mean: by more than this the rank with most samples has more"),
            "distance": Parameter(0.2, "of one rank's GPU utilisation to the others' (histograms), 0 to 1"),
            "least": Parameter(50, "steps that a rank must have taken"),
            "seconds": Parameter(20, "s of readings of the GPUs that it takes"),
        },
        "Compares the samples of the ranks that joined this session, from their loaders' counters, over the time in "
        "which all ran; and the utilisation histogram (50 bins of 2 %) of each rank's GPU with that of all others "
        "together: half the sum of the absolute differences, less 1.25 times what chance makes of one "
        "reading a second. Abstains without two ranks of a job, or where neither is known.",
        "This project's; the distance is that of `load-balancing`, SageMaker Debugger's LoadBalancing (0.2).",
        of_session=shares,
    ),
    Rule(
        "scaling-efficiency",
        "More ranks bring less than they should",
        {
            "efficiency": Parameter(
                0.8, "images/s of a job over its ranks times those of one rank alone: below it is low"
            )
        },
        "Compares each job of several ranks with one rank alone in the same session (a job of one rank, by "
        "`torchrun --nproc_per_node 1`), over the time in which all of its ranks stepped, less 2 s. Abstains without "
        "one.",
        "This project's.",
        of_session=efficiency,
    ),
)


RULES = (*_USAGE_RULES, *_SLOW_RANK_RULES, *_SHARE_RULES)
