"""A pattern in the steps of a job's ranks, and which part of whose steps follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ranks.rank import Rank
from ..ranks.rank_frames import Row
from ..steps.measured_step import NO_GRADIENTS, PHASES, PROFILED, WARM_UP
from .frames import Floats, Places
from .step_period import Period, following, strongest

FEWEST = 48  # steps that it takes
EFFECT, EXPLAINED = 0.2, 0.5  # as of the rule `step-period`
BACKWARD = "backward"
_STEP, _PARTS = 5, {"wait": 4, **{part: 6 + place for place, part in enumerate(PHASES)}}
WORDS = {
    "wait": "wait for data",
    "copy": "copy",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class JobPeriod:
    """A pattern of the steps of a job."""

    job: int  # its number
    period: Period  # of the step times, in ms
    count: int  # steps that were looked at
    part: str | None  # of the steps, that follows it: `wait` or a phase; None: not known
    rank: int | None = None  # the one whose part it is; None: all ranks' alike

    @property
    def sentence(self) -> str:
        """Length, times and part, for people."""
        text = f"The steps of job {self.job} follow a pattern of {self.period.steps}: {self.period.words} "
        text += f"({self.count} steps)"
        if self.part is None:
            return text + "."
        whose = "the" if self.rank is None else f"rank {self.rank}'s"
        return f"{text}; it is {whose} {WORDS[self.part]} that follows it."


def job_period(job: int, steps: Mapping[Rank, Sequence[Row]]) -> JobPeriod | None:
    """The pattern of 2 to 8 steps of a job; None where there is none, or too few steps are known.

    Ranks that average their gradients take steps of the same length, so those of the first one are searched. All of
    them wait in the backward pass for whoever is late: another part is named before it, with its rank if the others'
    does not follow the pattern.

    Args:
        steps: of each rank, one after the other. Warm-up, profiled steps and evaluations do not count.
    """
    tables = {rank: _counted(rows) for rank, rows in sorted(steps.items(), key=lambda entry: entry[0].number)}
    tables = {rank: rows for rank, rows in tables.items() if len(rows) >= FEWEST}
    first = next(iter(tables.values()), None)
    if first is None:
        return None
    found = strongest(1e3 * first[:, _STEP], *_places(first))
    if found is None or found.effect <= EFFECT or found.explained <= EXPLAINED:
        return None
    own = {rank.number: _follows(found, rows) for rank, rows in tables.items()}
    named = {number: part for number, part in own.items() if part not in (None, BACKWARD)}
    if len(named) == 1 < len(own):
        ((number, part),) = named.items()
        return JobPeriod(job, found, len(first), part, number)
    parts = {part for part in (named or own).values() if part is not None}
    return JobPeriod(job, found, len(first), parts.pop() if len(parts) == 1 else None)


def _counted(rows: Sequence[Row]) -> Floats:
    """The rows that count, with their number among all of the loop in place of the flags."""
    loop = [row for row in rows if not row[-1] & NO_GRADIENTS]
    kept = [(*row[:-1], number) for number, row in enumerate(loop) if not row[-1] & (WARM_UP | PROFILED)]
    return np.array(kept, dtype=np.float64)


def _follows(period: Period, rows: Floats) -> str | None:
    parts = {part: 1e3 * rows[:, place] for part, place in _PARTS.items()}
    return following(period, parts, *_places(rows))


def _places(rows: Floats) -> tuple[Places, Places]:
    """The batches' numbers, and those of the steps among all."""
    return rows[:, 2].astype(np.intp), rows[:, -1].astype(np.intp)
