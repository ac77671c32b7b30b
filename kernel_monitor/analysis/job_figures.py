"""What the ranks of a session did: their mean steps and phases, images/s over all of them, and who was slow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ranks.rank import Rank
from ..store import Snapshot
from .frames import Frames
from .slow_rank import WORDS, SlowRank, slow_rank

PARTS = (
    "step",
    "wait",
    "wait_percent",
    "copy",
    "forward",
    "backward",
    "optimizer",
    "other",
    "images",
    "gpu",
    "gpu_clock",
)


@dataclass(frozen=True)
class RankFigures:
    """One rank over the whole session."""

    rank: Rank
    means: dict[str, float]  # over time, by the part of the series' names; what was not measured is left out
    steps: int | None  # that were counted; None: not known
    slow: Counter[str]  # how often it became the slow rank of its job, by the cause


@dataclass(frozen=True)
class JobFigures:
    """One job over the whole session."""

    job: int
    ranks: tuple[RankFigures, ...]
    rate: float  # images/s over all ranks; NaN: no rank has a loader
    slowest: SlowRank | None  # over the whole session; None: none for sure


def job_figures(snapshot: Snapshot) -> tuple[JobFigures, ...]:
    """The jobs that have ranks which sent their steps, by their numbers."""
    frames = Frames(snapshot)
    slow: dict[str, Counter[str]] = {}
    for event in snapshot.events:
        if event.get("kind") == "slow-rank":
            slow.setdefault(str(event.get("rank")), Counter())[str(event.get("cause"))] += 1
    found = []
    for job in dict.fromkeys(rank.job for rank in snapshot.schema.ranks if rank.steps):
        own = [rank for rank in snapshot.schema.ranks if rank.job == job and rank.steps]
        figures = tuple(_figures(frames, rank, slow.get(rank.id, Counter())) for rank in own)
        rates = [each.means["images"] for each in figures if "images" in each.means]
        found.append(JobFigures(job, figures, sum(rates) if rates else math.nan, _slowest(frames, own)))
    return tuple(found)


def _figures(frames: Frames, rank: Rank, slow: Counter[str]) -> RankFigures:
    means: dict[str, float] = {}
    for part in PARTS:
        values = frames.series(f"rank/{rank.id}/{part}")
        if np.isfinite(values).any():
            means[part] = float(np.nanmean(values))
    counts = frames.series(f"rank/{rank.id}/steps")
    counts = counts[np.isfinite(counts)]
    # A rank that was started again under its number counts from the beginning.
    grown = np.diff(counts, prepend=0.0)
    steps = int(np.where(grown < 0, counts, grown).sum()) if len(counts) else None
    return RankFigures(rank, means, steps, slow)


def _slowest(frames: Frames, ranks: Sequence[Rank]) -> SlowRank | None:
    steps = np.array([frames.series(f"rank/{rank.id}/step") for rank in ranks])
    times = frames.time[np.isfinite(steps).sum(axis=0) >= 2]
    return slow_rank(frames, ranks, float(times[0]) - 1e-6, float(times[-1])) if len(times) > 1 else None


def compared(a: Snapshot, b: Snapshot) -> list[str]:
    """A sentence for each job of two sessions: images/s over all ranks, and what the slowest rank costs.

    Jobs are paired by their place; those of one session alone are named as such.
    """
    before, after = job_figures(a), job_figures(b)
    lines = []
    for k in range(max(len(before), len(after))):
        sides = [("A", before[k] if k < len(before) else None), ("B", after[k] if k < len(after) else None)]
        there = [(letter, job) for letter, job in sides if job is not None]
        rates = ", ".join(f"{_rate(job)} in {letter}" for letter, job in there)
        change = ""
        if len(there) == 2 and before[k].rate > 0 and math.isfinite(after[k].rate):
            change = f" ({100 * (after[k].rate / before[k].rate - 1):+.1f} %)"
        only = f" (only in {there[0][0]})" if len(there) == 1 else ""
        slowest = "; ".join(f"{letter}: {_loss(job)}" for letter, job in there)
        lines.append(f"job {k + 1}{only}: {rates}{change}. Slowest rank: {slowest}.")
    return lines


def plain(jobs: Sequence[JobFigures]) -> list[dict[str, Any]]:
    """The jobs as JSON has them."""
    return [
        {
            "job": job.job,
            "ranks": len(job.ranks),
            "images_per_s": None if math.isnan(job.rate) else job.rate,
            "slowest": None
            if job.slowest is None
            else {
                "rank": job.slowest.rank.number,
                "cause": job.slowest.cause,
                "lost_ms": job.slowest.lost,
                "step_ms": job.slowest.step,
            },
        }
        for job in jobs
    ]


def _rate(job: JobFigures) -> str:
    ranks = f"{len(job.ranks)} rank{'' if len(job.ranks) == 1 else 's'}"
    return f"{ranks} without images/s" if math.isnan(job.rate) else f"{job.rate:,.0f} images/s over {ranks}"


def _loss(job: JobFigures) -> str:
    slow = job.slowest
    if slow is None:
        return "none for sure"
    return f"{slow.rank.number}, {slow.lost:,.1f} ms of a step of {slow.step:,.1f} ms, as {WORDS[slow.cause]}"


def in_words(jobs: Sequence[JobFigures]) -> str:
    """What jobs did, one sentence each: their images/s, how long their ranks waited for data, and the slow one."""
    found = []
    for job in jobs:
        waits = [each.means["wait_percent"] for each in job.ranks if "wait_percent" in each.means]
        count = f"{len(job.ranks)} rank{'s' if len(job.ranks) > 1 else ''}"
        rate = f", {job.rate:,.0f} images/s together" if math.isfinite(job.rate) else ""
        wait = f", waiting {np.mean(waits):.0f} % of their steps for data" if waits else ""
        found.append(f"Job {job.job} ran on {count}{rate}{wait}.")
        found += [job.slowest.sentence] if job.slowest is not None else []
    return " ".join(found)
