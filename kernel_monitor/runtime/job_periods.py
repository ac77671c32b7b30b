"""Looks for patterns in the single steps of the jobs' ranks, now and then, and notes each as an event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ..analysis.job_period import JobPeriod, job_period
from ..ranks.rank import Rank
from ..ranks.rank_frames import Row

LOOK_S = 2.0  # between two looks
FRESH = 16  # new steps between two looks at a job that both must have found it


class JobPeriods:
    """The patterns of one session's jobs, asked on the sampler's reader thread.

    Attributes:
        found: the pattern of each job that has one now, by the job's number.
    """

    def __init__(self, add_event: Callable[..., object]) -> None:
        self.found: dict[int, JobPeriod] = {}
        self._add_event = add_event
        self._due = 0.0
        self._last: dict[int, float] = {}  # by the job's number: the end of the newest step that was looked at
        self._once: dict[int, JobPeriod | None] = {}  # what the last look found

    def look(self, at: float, recent: Callable[[], Mapping[Rank, Sequence[Row]]]) -> None:
        """Look at the newest steps if it is due; `at`: session s."""
        if at < self._due:
            return
        self._due = at + LOOK_S
        jobs: dict[int, dict[Rank, Sequence[Row]]] = defaultdict(dict)
        for rank, rows in recent().items():
            if rows:
                jobs[rank.job][rank] = rows
        for gone in self.found.keys() - jobs.keys():
            del self.found[gone]
        for kept in (self._last, self._once):
            for ended in kept.keys() - jobs.keys():
                del kept[ended]
        for job, steps in jobs.items():
            rows = max(steps.values(), key=len)
            if sum(row[0] > self._last.get(job, 0.0) for row in rows) >= FRESH:
                self._last[job] = rows[-1][0]
                self._judge(job, at, job_period(job, steps))

    def _judge(self, job: int, at: float, period: JobPeriod | None) -> None:
        before, self._once[job] = self._once.get(job), period
        if period is not None and before is not None and period.period.steps == before.period.steps:
            if job not in self.found:
                self._add_event("step-period", at, job=job, steps=period.period.steps, message=period.sentence)
            self.found[job] = period
        elif period is None and before is None:
            self.found.pop(job, None)
