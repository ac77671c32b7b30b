"""The slowest rank of a job, and why: its wait for data, its GPU's clock, its host's cores, or else its own compute.

Ranks that average their gradients wait for each other in a collective, so all take the steps of the slowest one and
their step times tell nothing. What tells is the time that each spends before it: the late rank is the one with the
*least* wait in the collective. In torch's DistributedDataParallel that wait is part of `backward`, with a collective
called by hand part of `other`; so a rank's own time is wait + copy + forward + optimizer, where phases were measured.
Without phases only the wait for data is known to be its own. Ranks whose steps differ do not wait for each other: then
the whole step is a rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..ranks.rank import Rank
from .frames import Frames
from .rank_hardware import hardware_cause

Cause = Literal["data", "clock", "cpu", "compute"]
Floats = npt.NDArray[np.float64]
BINS = 6  # into which a window is cut; all but one must agree
FEWEST = 5  # bins with values that it takes
LEAST_MS = 0.5  # a rank that loses less per step is not named
SURE = 6.0  # standard errors that the loss must exceed: the windows of a session are judged thousands of times
TOGETHER = 0.08  # of a step: ranks whose steps differ by less wait for each other
WINDOW_S = 3.0  # that the live page looks at

OWN = ("copy", "forward", "optimizer")  # phases that are a rank's own in any case
WORDS: dict[Cause, str] = {
    "data": "it waits for its data",
    "clock": "its GPU's clock is lower",
    "cpu": "its host's cores are busy",
    "compute": "its own compute takes longer",
}


@dataclass(frozen=True)
class SlowRank:
    """A rank that is slower than the others, which wait for it where they average gradients."""

    rank: Rank
    cause: Cause
    lost: float  # ms per step that it takes longer than the median of the others
    step: float  # ms, the job's median step
    ranks: int  # with values
    figures: str = ""  # of the cause, in words

    @property
    def why(self) -> str:
        """The cause, for people."""
        return WORDS[self.cause] + (f" ({self.figures})" if self.figures else "")

    @property
    def sentence(self) -> str:
        """Rank, cause and size, for people."""
        job = f" of job {self.rank.job}" if self.rank.job > 1 else ""
        host = f" ({self.rank.host})" if self.rank.host else ""
        others = "the other" if self.ranks == 2 else f"the {self.ranks - 1} others"
        return (
            f"Rank {self.rank.number}{job}{host} is the slowest: {self.why}, {self.lost:,.1f} ms longer than "
            f"{others} in a step of {self.step:,.1f} ms."
        )


def slow_rank(frames: Frames, ranks: Sequence[Rank], start: float, end: float, share: float = 0.05) -> SlowRank | None:
    """The slow rank of a job in `(start, end]` (session s); None where no rank, or none for sure, is slower.

    Args:
        ranks: of one job.
        share: of the step; a rank that loses less is not named.
    """
    known = [rank for rank in ranks if f"rank/{rank.id}/step" in frames.schema.columns]
    rows = (frames.time > start) & (frames.time <= end)
    bins = np.clip(((frames.time[rows] - start) / max(end - start, 1e-9) * BINS).astype(int), 0, BINS - 1)

    def table(part: str) -> Floats:
        """[rank, bin] in ms; NaN: not known."""
        return _binned(np.array([frames.series(f"rank/{rank.id}/{part}")[rows] for rank in known]), bins)

    step = table("step") if known else np.empty((0, BINS))
    present = np.isfinite(step).sum(axis=1) >= FEWEST
    known = [rank for rank, there in zip(known, present, strict=True) if there]
    if len(known) < 2:
        return None
    step = step[present]
    wait = table("wait")
    parts = [table(part) for part in OWN]
    typical = float(np.nanmedian(step))
    middle = np.nanmedian(step, axis=1)
    phased = np.isfinite(table("forward")).any(axis=1).all()
    if middle.max() - middle.min() > max(TOGETHER * typical, 1.0):
        own = step
    elif phased:
        own = np.nan_to_num(wait) + sum(np.nan_to_num(part) for part in parts) + 0.0 * step
    else:
        own = wait
    lateness = own - _others(own)
    late = int(np.argmax(np.nan_to_num(np.nanmean(lateness, axis=1), nan=-np.inf)))
    if not _sure(lateness[late], max(LEAST_MS, share * typical)):
        return None
    lost = float(np.nanmean(lateness[late]))
    waits = float(np.nanmean(wait[late] - _others(wait)[late])) if np.isfinite(wait[late]).any() else 0.0
    if waits > lost / 2:
        return SlowRank(known[late], "data", lost, typical, len(known))
    found = hardware_cause(frames, known, known[late], rows, lost, typical)
    if found is None:
        return SlowRank(known[late], "compute", lost, typical, len(known))
    return SlowRank(known[late], found.cause, lost, typical, len(known), found.figures)


def _binned(values: Floats, bins: npt.NDArray[np.int_]) -> Floats:
    """The means [rank, bin] of values [rank, row]."""
    known = np.isfinite(values)
    inside = (bins[:, None] == np.arange(BINS)).astype(float)
    count, total = known @ inside, np.where(known, values, 0.0) @ inside
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _others(own: Floats) -> Floats:
    """For each rank the median of the others, bin by bin."""
    found = np.full_like(own, np.nan)
    # Sorted once for all ranks: a live page looks at 64 of them twice a second.
    for k, column in enumerate(own.T):
        order = np.argsort(column)  # NaN last
        known = int(np.isfinite(column).sum())
        place = np.empty(len(column), dtype=int)
        place[order] = np.arange(len(column))
        others = np.where(place < known, known - 1, known)
        low, high = (others - 1) // 2, others // 2
        sides = [column[order[np.minimum(side + (side >= place), len(column) - 1)]] for side in (low, high)]
        found[:, k] = np.where(others > 0, (sides[0] + sides[1]) / 2, np.nan)
    return found


def _sure(lateness: Floats, least: float) -> bool:
    """Whether a rank was later than the others by `least` (ms) in the mean, nearly always, and beyond chance."""
    known = lateness[np.isfinite(lateness)]
    if len(known) < FEWEST or known.mean() <= least:
        return False
    error = known.std(ddof=1) / np.sqrt(len(known))
    return bool((known > least / 2).sum() >= len(known) - 1 and known.mean() > SURE * error)
