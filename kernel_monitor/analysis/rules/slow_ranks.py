"""Rules on the ranks of a job that a session saw: one of them holds up the others, or their steps follow a pattern."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from ..results import Advice, Evidence, Finding
from ..slow_rank import Cause, SlowRank, slow_rank
from .rule import Check, Parameter, Rule, Session, SignalMissing, plainly, require

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
            advised += plainly(ADVICE[slow.cause].format(rank=slow.rank.number))
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
    advised = plainly(
        "Gradients summed over several batches follow a pattern on purpose; batch shapes that alternate, memory given "
        "back, or synchronisations every few steps do not."
    )
    return check.finding(bool(evidence), advised, *evidence, samples=len(ranks), times=len(evidence) or 1)


RULES = (
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
        "and is not told. Abstains without two ranks; names none where ranks merely wait for each other.",
        "This project's.",
        of_session=slowest,
    ),
    Rule(
        "rank-step-period",
        "The steps of ranks follow a pattern",
        {},
        "Fires for each job whose steps were seen to follow a pattern of 2 to 8 steps while it ran: the recording has "
        "single steps of its own loops only, so it was looked for in the newest 48 to 80 steps of each rank as they "
        "came, twice in a row, as `step-period` does. Names the phase, and its rank if it is one rank's. Abstains "
        "without steps of ranks.",
        "This project's, as `step-period`.",
        of_session=periods,
    ),
)
