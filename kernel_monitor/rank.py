"""The ranks of a job as sessions, recordings and charts know them: `Rank`, its series, and its single steps (`Row`).

The package `ranks` finds live ones. This module imports nothing of the package, so that the recorder can use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[float, int, int, int, float, float, float, float, float, float, int]
"""One step of a rank, with the fields of `steps.measured_step.Step`; `end` is in s of the kernel's monotonic clock."""

STEP_PARTS = (
    ("step", "ms"),
    ("wait", "ms"),
    ("wait_percent", "%"),
    ("copy", "ms"),
    ("forward", "ms"),
    ("backward", "ms"),
    ("optimizer", "ms"),
    ("other", "ms"),
    ("images", "images/s"),
    ("steps", "1"),
)
"""The series of a rank that sends its steps, beside `cpu`: the part of the name after `rank/<id>/`, and the unit."""

GPU_PARTS = (("gpu", "%"), ("gpu_clock", "MHz"))
"""The series of a rank whose GPU is known: that GPU's utilisation and clock."""
JOB_RANKS = ("slowest", "median")
JOB_PARTS = (
    ("rank", "1"),
    ("wait", "ms"),
    ("copy", "ms"),
    ("forward", "ms"),
    ("backward", "ms"),
    ("optimizer", "ms"),
    ("other", "ms"),
)
"""The series of a job's slowest and median rank, `job/<n>/slowest/…`: its number, and the phases of its steps."""
_JOB_TOTALS = (("images", "images/s"), ("step", "ms"), ("wait", "ms"))
"""The series of a job, `job/<n>/…`: the sum of its ranks' images per second, the means of their steps and waits."""


@dataclass(frozen=True)
class Rank:
    """One process of a job."""

    id: str  # the `<id>` of `rank/<id>/…`: the job's number and the rank's, as `1-0`
    job: int  # from 1, in the order in which jobs came
    number: int  # in its job, from 0
    world: int | None = None  # how many ranks the job has; None: not known
    host: str = ""  # of another machine the name that live pages show; empty: this one
    steps: bool = True  # whether it sends its steps; else only its CPU is known
    alive: bool = True
    reason: str | None = None  # why it is not alive, in words
    node: str = ""  # the id of its host among the nodes (`node_sources`); empty: this machine
    gpu: int | None = None  # NVML's index of its GPU on that host; None: none, or not known
    clock: float | None = None  # ms by which its host's clock is known, rounded up; None: this machine's, or not known


def rank_series(rank: str, *, steps: bool, gpu: bool = False) -> list[tuple[str, str]]:
    """Return the series of a rank (its id), in order: names and units. `gpu`: whether its GPU is known."""
    parts = (("cpu", "%"), *(STEP_PARTS if steps else ()), *(GPU_PARTS if gpu else ()))
    return [(f"rank/{rank}/{part}", unit) for part, unit in parts]


def job_series(job: int) -> list[tuple[str, str]]:
    """Return the series of a job (its number) that has ranks which send steps: of all, of its slowest and its median
    rank.
    """
    totals = [(f"job/{job}/{part}", unit) for part, unit in _JOB_TOTALS]
    return totals + [(f"job/{job}/{which}/{part}", unit) for which in JOB_RANKS for part, unit in JOB_PARTS]


def jobs_of(ranks: Iterable[Rank]) -> list[int]:
    """Return the jobs of these ranks that have `job_series`: those with two ranks or more that send steps."""
    counts = Counter(rank.job for rank in ranks if rank.steps)
    return [job for job, count in counts.items() if count > 1]
