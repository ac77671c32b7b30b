"""The figures of a session's jobs: steps, phases and images/s of their ranks, the slowest rank, the scaling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SessionError
from ..rank import Rank, jobs_of
from ..store import Rows, Snapshot
from .frames import Frames
from .loops import training_segments
from .segments import segments
from .slow_rank import CAUSE_WORDS, OWN, TOGETHER, SlowRank, slow_rank

# ---- The figures of each rank: mean steps and phases, images/s over all ranks, and the slow rank.

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
    """The figures of one rank over the whole session."""

    rank: Rank
    means: dict[str, float]  # over time, by the part of the series' names; what was not measured is left out
    steps: int | None  # that were counted; None: not known
    slow: Counter[str]  # how often it became the slow rank of its job, by the cause


@dataclass(frozen=True)
class _JobFigures:
    """The figures of one job over the whole session."""

    job: int
    ranks: tuple[RankFigures, ...]
    rate: float  # images/s over all ranks; NaN: no rank has a loader
    slowest: SlowRank | None  # over the whole session; None: none for sure


def job_figures(snapshot: Snapshot) -> tuple[_JobFigures, ...]:
    """Return the jobs that have ranks which sent their steps, by their numbers."""
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
        found.append(_JobFigures(job, figures, sum(rates) if rates else math.nan, _slowest(frames, own)))
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


def job_comparisons(a: Snapshot, b: Snapshot) -> list[str]:
    """Return a sentence for each job of two sessions: images/s over all ranks, and what the slowest rank costs.

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


def plain(jobs: Sequence[_JobFigures]) -> list[dict[str, Any]]:
    """Return the jobs as JSON has them."""
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


def _rate(job: _JobFigures) -> str:
    ranks = f"{len(job.ranks)} rank{'' if len(job.ranks) == 1 else 's'}"
    return f"{ranks} without images/s" if math.isnan(job.rate) else f"{job.rate:,.0f} images/s over {ranks}"


def _loss(job: _JobFigures) -> str:
    slow = job.slowest
    if slow is None:
        return "none for sure"
    return f"{slow.rank.number}, {slow.lost:,.1f} ms of a step of {slow.step:,.1f} ms, as {CAUSE_WORDS[slow.cause]}"


def jobs_text(jobs: Sequence[_JobFigures]) -> str:
    """Return a sentence on each job: its images/s, how long its ranks waited for data, and the slow one."""
    found = []
    for job in jobs:
        waits = [each.means["wait_percent"] for each in job.ranks if "wait_percent" in each.means]
        count = f"{len(job.ranks)} rank{'s' if len(job.ranks) > 1 else ''}"
        rate = f", {job.rate:,.0f} images/s together" if math.isfinite(job.rate) else ""
        wait = f", waiting {np.mean(waits):.0f} % of their steps for data" if waits else ""
        found.append(f"Job {job.job} ran on {count}{rate}{wait}.")
        found += [job.slowest.sentence] if job.slowest is not None else []
    return " ".join(found)


# ---- The totals of each job, and the phases of its slowest and its median rank, from the newest values of its ranks.

PHASES = ("wait", "copy", "forward", "backward", "optimizer")


def job_phases(ranks: Sequence[Rank], values: Mapping[str, float], slow: Mapping[int, SlowRank]) -> dict[str, float]:
    """Return values of `ranks.rank.job_series` in ms, as far as they were measured; `other` is the rest of the step.

    Args:
        ranks: all that have series.
        values: the newest of the ranks', by the series' names.
        slow: the slow rank of each job that has one, by the job's number.
    """
    found: dict[str, float] = {}
    for job in jobs_of(ranks):
        alive = [rank for rank in ranks if rank.job == job and f"rank/{rank.id}/step" in values]
        found |= {f"job/{job}/{part}": value for part, value in _totals(alive, values).items()}
        if len(alive) < 2:
            continue
        times = _own(alive, values)
        order = sorted(range(len(alive)), key=times.__getitem__)
        named = slow[job].rank.id if job in slow else None
        slowest = next((rank for rank in alive if rank.id == named), alive[order[-1]])
        others = [alive[k] for k in order if alive[k] is not slowest]
        for which, rank in (("slowest", slowest), ("median", others[(len(others) - 1) // 2])):
            found |= {f"job/{job}/{which}/{part}": value for part, value in _phases(rank, values).items()}
    return found


def _totals(ranks: Sequence[Rank], values: Mapping[str, float]) -> dict[str, float]:
    """Return the images/s of all ranks and the means of their steps and waits (ms), as far as each is known."""
    known = {
        part: [values[name] for rank in ranks if (name := f"rank/{rank.id}/{part}") in values]
        for part in ("images", "step", "wait")
    }
    found = {part: fmean(of) for part, of in known.items() if of}
    return {**found, "images": sum(known["images"])} if known["images"] else found


def _own(ranks: Sequence[Rank], values: Mapping[str, float]) -> list[float]:
    """Return the time of each rank's own per step (ms), as `slow_rank` has it."""
    steps = [values[f"rank/{rank.id}/step"] for rank in ranks]
    if max(steps) - min(steps) > max(TOGETHER * median(steps), 1.0):
        return steps
    phased = all(f"rank/{rank.id}/forward" in values for rank in ranks)
    parts = ("wait", *OWN) if phased else ("wait",)
    return [sum(values.get(f"rank/{rank.id}/{part}", 0.0) for part in parts) for rank in ranks]


def _phases(rank: Rank, values: Mapping[str, float]) -> dict[str, float]:
    name = f"rank/{rank.id}/"
    found = {part: values[name + part] for part in PHASES if name + part in values}
    rest = max(0.0, values[f"{name}step"] - sum(found.values()))
    return {"rank": float(rank.number), **found, "other": rest}


# ---- Scaling efficiency of a job: its images/s over the number of its ranks times the images/s of one rank alone.

FEWEST_STEPS = 20  # of each rank
_WARM_UP_S = 2.0  # of the time in which all ranks step, left out at its beginning
_SAME_BATCH = 0.05  # by which the samples of a step may differ


@dataclass(frozen=True)
class Throughput:
    """The images/s of some ranks together, over the time in which all of them stepped."""

    ranks: int
    rate: float  # images/s, of all together
    images: int  # images, steps: counted from rates over time, so about; steps are one rank's
    steps: int
    seconds: float

    @property
    def words(self) -> str:
        """The rate with its counts, for people."""
        steps = f"{self.steps:,} steps" + (" of each" if self.ranks > 1 else "")
        return f"{self.rate:,.1f} images/s (about {self.images:,} samples in {steps}, {self.seconds:,.0f} s)"

    @property
    def batch(self) -> float:
        """Samples in a step of one rank."""
        return self.images / (self.ranks * self.steps)


@dataclass(frozen=True)
class Scaling:
    """A job beside one rank alone; `print()` of it gives one sentence."""

    job: int  # its number
    together: Throughput
    alone: Throughput
    where: str = ""  # the session of `alone`, if it is another one

    @property
    def efficiency(self) -> float:
        """The rate of a rank beside that of one rank alone; 1 if they are equal."""
        return self.together.rate / (self.together.ranks * self.alone.rate)

    @property
    def sentence(self) -> str:
        """A sentence with both rates, their counts, and the efficiency."""
        text = (
            f"Job {self.job} delivers {self.together.words} with {self.together.ranks} ranks, one rank alone"
            f"{self.where} {self.alone.words}: scaling efficiency {100 * self.efficiency:.0f} %."
        )
        if abs(self.alone.batch / self.together.batch - 1) > _SAME_BATCH:
            batches = self.together.batch, self.alone.batch
            text += f" Their batches differ: about {batches[0]:.0f} samples in a step, {batches[1]:.0f} alone."
        return text

    def __str__(self) -> str:
        return self.sentence


def throughput(rows: Rows, ranks: Sequence[Rank]) -> Throughput | None:
    """Return the throughput of ranks of one job while all of them stepped; None where that is too little."""
    frames = Frames(rows)
    if not ranks:
        return None
    rates = np.stack([frames.series(f"rank/{rank.id}/images") for rank in ranks])
    steps = np.stack([frames.series(f"rank/{rank.id}/step") for rank in ranks])
    stepped: npt.NDArray[np.bool_] = np.logical_and.reduce([*np.isfinite(rates), *(steps > 0)])
    if not stepped.any():
        return None
    stepped &= frames.time > frames.time[stepped][0] + _WARM_UP_S
    window = frames.window[stepped]
    seconds, count = float(window.sum()), float((window / (1e-3 * steps[:, stepped])).sum(axis=1).mean())
    images = float((rates[:, stepped] * window).sum())
    if count < FEWEST_STEPS or images <= 0:
        return None
    return Throughput(len(ranks), images / seconds, round(images), round(count), seconds)


def ranks_by_job(rows: Rows) -> dict[int, list[Rank]]:
    """Return the ranks that sent steps, by their job's number, the oldest job first."""
    found: dict[int, list[Rank]] = {}
    for rank in sorted(rows.schema.ranks, key=lambda rank: (rank.job, rank.number)):
        if rank.steps:
            found.setdefault(rank.job, []).append(rank)
    return found


def throughput_alone(rows: Rows) -> Throughput | None:
    """Return the throughput of one rank alone: of the newest job of one rank, else of the session's own process."""
    singles = [ranks for ranks in ranks_by_job(rows).values() if len(ranks) == 1 and ranks[0].world in (1, None)]
    for ranks in reversed(singles):
        found = throughput(rows, ranks)
        if found is not None:
            return found
    if not isinstance(rows, Snapshot) or rows.facts.get("world_size") not in (None, 1):
        return None
    real = [each for each in training_segments(segments(rows)) if not each.synthetic and each.steps >= FEWEST_STEPS]
    if not real or not real[-1].rate > 0:
        return None
    newest = real[-1]
    seconds = newest.steps * newest.step / 1e3
    return Throughput(1, newest.rate, round(newest.rate * seconds), newest.steps, seconds)


def scaling(rows: Rows, job: int | None = None, other: Rows | None = None, where: str = "") -> Scaling:
    """Return the scaling of a job.

    Args:
        rows: with the job.
        job: its number; None for the newest one of several ranks.
        other: with one rank alone; None: `rows`.
        where: words on that session, with a space before them.

    Raises:
        SessionError: there is no such job, no rank alone, or either has too few steps.
    """
    several = {number: ranks for number, ranks in ranks_by_job(rows).items() if len(ranks) > 1}
    number = max(several, default=0) if job is None else job
    if number not in several:
        raise SessionError(
            f"There is no job {number} of several ranks that send their steps here."
            if job is not None
            else "No job of several ranks has sent its steps here: start one from this notebook, or see %monitor join."
        )
    together, single = throughput(rows, several[number]), throughput_alone(rows if other is None else other)
    if together is None:
        raise SessionError(f"Job {number} has too few steps yet: {FEWEST_STEPS} of each rank are needed, after 2 s.")
    if single is None:
        raise SessionError(
            f"One rank alone was not measured{where} over {FEWEST_STEPS} steps after {_WARM_UP_S:.0f} s of warm-up. "
            "When the job has ended, start it here once more with one rank (torchrun --nproc_per_node 1). Or name a "
            f"session that measured it: monitor.scaling({number}, alone=SESSION)."
        )
    return Scaling(number, together, single, where)
