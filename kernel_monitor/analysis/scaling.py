"""Scaling efficiency of a job: its images/s over the number of its ranks times the images/s of one rank alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import SessionError
from ..ranks.rank import Rank
from ..store import Rows, Snapshot
from .frames import Frames
from .loops import trained
from .segments import segments

FEWEST_STEPS = 20  # of each rank
WARM_UP_S = 2.0  # of the time in which all ranks step, left out at its beginning
SAME_BATCH = 0.05  # by which the samples of a step may differ


@dataclass(frozen=True)
class Throughput:
    """What some ranks delivered together while all of them stepped."""

    ranks: int
    rate: float  # images/s, of all together
    images: int  # images, steps: counted from rates over time, so about; steps are one rank's
    steps: int
    seconds: float

    @property
    def words(self) -> str:
        """Rate and counts, for people."""
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
        """1: each rank delivers as much as one does alone."""
        return self.together.rate / (self.together.ranks * self.alone.rate)

    @property
    def sentence(self) -> str:
        """Both rates with their counts, and the efficiency."""
        text = (
            f"Job {self.job} delivers {self.together.words} with {self.together.ranks} ranks, one rank alone"
            f"{self.where} {self.alone.words}: scaling efficiency {100 * self.efficiency:.0f} %."
        )
        if abs(self.alone.batch / self.together.batch - 1) > SAME_BATCH:
            batches = self.together.batch, self.alone.batch
            text += f" Their batches differ: about {batches[0]:.0f} samples in a step, {batches[1]:.0f} alone."
        return text

    def __str__(self) -> str:
        return self.sentence


def throughput(rows: Rows, ranks: Sequence[Rank]) -> Throughput | None:
    """What ranks of one job delivered while all of them stepped; None where that is too little."""
    frames = Frames(rows)
    if not ranks:
        return None
    rates = np.stack([frames.series(f"rank/{rank.id}/images") for rank in ranks])
    steps = np.stack([frames.series(f"rank/{rank.id}/step") for rank in ranks])
    stepped: npt.NDArray[np.bool_] = np.logical_and.reduce([*np.isfinite(rates), *(steps > 0)])
    if not stepped.any():
        return None
    stepped &= frames.time > frames.time[stepped][0] + WARM_UP_S
    window = frames.window[stepped]
    seconds, count = float(window.sum()), float((window / (1e-3 * steps[:, stepped])).sum(axis=1).mean())
    images = float((rates[:, stepped] * window).sum())
    if count < FEWEST_STEPS or images <= 0:
        return None
    return Throughput(len(ranks), images / seconds, round(images), round(count), seconds)


def jobs_of(rows: Rows) -> dict[int, list[Rank]]:
    """The ranks that sent steps, by their job's number, the oldest job first."""
    found: dict[int, list[Rank]] = {}
    for rank in sorted(rows.schema.ranks, key=lambda rank: (rank.job, rank.number)):
        if rank.steps:
            found.setdefault(rank.job, []).append(rank)
    return found


def alone(rows: Rows) -> Throughput | None:
    """One rank alone: the newest job of one rank; else the loop of the session's own process, if that was alone."""
    singles = [ranks for ranks in jobs_of(rows).values() if len(ranks) == 1 and ranks[0].world in (1, None)]
    for ranks in reversed(singles):
        found = throughput(rows, ranks)
        if found is not None:
            return found
    if not isinstance(rows, Snapshot) or rows.facts.get("world_size") not in (None, 1):
        return None
    real = [each for each in trained(segments(rows)) if not each.synthetic and each.steps >= FEWEST_STEPS]
    if not real or not real[-1].rate > 0:
        return None
    newest = real[-1]
    seconds = newest.steps * newest.step / 1e3
    return Throughput(1, newest.rate, round(newest.rate * seconds), newest.steps, seconds)


def scaling(rows: Rows, job: int | None = None, other: Rows | None = None, where: str = "") -> Scaling:
    """The scaling of a job.

    Args:
        rows: with the job.
        job: its number; None for the newest one of several ranks.
        other: with one rank alone; None: `rows`.
        where: words on that session, with a space before them.

    Raises:
        SessionError: there is no such job, no rank alone, or either has too few steps.
    """
    several = {number: ranks for number, ranks in jobs_of(rows).items() if len(ranks) > 1}
    number = max(several, default=0) if job is None else job
    if number not in several:
        raise SessionError(
            f"There is no job {number} of several ranks that send their steps here."
            if job is not None
            else "No job of several ranks has sent its steps here: start one from this notebook, or see %monitor join."
        )
    together, single = throughput(rows, several[number]), alone(rows if other is None else other)
    if together is None:
        raise SessionError(f"Job {number} has too few steps yet: {FEWEST_STEPS} of each rank are needed, after 2 s.")
    if single is None:
        raise SessionError(
            f"One rank alone was not measured{where}, or for less than {FEWEST_STEPS} steps after {WARM_UP_S:.0f} s: "
            f"%monitor alone {number} runs it once the job has ended, for longer with --seconds; or name a session "
            f"that has one, monitor.scaling({number}, alone=SESSION)."
        )
    return Scaling(number, together, single, where)
