"""What the template shows of the ranks of trainings: one row each."""

from __future__ import annotations

from typing import Any

from ..analysis.job_figures import RankFigures, job_figures
from ..ranks.rank import JOB_PARTS, Rank
from ..store.schema import Schema
from .formats import amount, plural
from .subject import Subject


def ranks(subject: Subject) -> dict[str, Any] | None:
    """The ranks that sent their steps, job by job; None where there was none."""
    snapshot = subject.snapshot
    jobs = job_figures(snapshot)
    if not jobs:
        return None
    every = [each for job in jobs for each in job.ranks]
    phases = [part for part, unit in JOB_PARTS if unit == "ms" and any(part in each.means for each in every)]
    products = [name for each in every if (name := _product(snapshot.schema, each.rank))]
    several = len(jobs) > 1
    return {
        "jobs": [
            {
                "name": f"Job {job.job}" if several else "",
                "rate": amount(job.rate, "images/s") if job.rate == job.rate else "",
                "ranks": plural(len(job.ranks), "rank"),
                "slowest": job.slowest.sentence if job.slowest is not None else "",
            }
            for job in jobs
        ],
        "phases": [phase for phase in phases if phase != "wait"],
        "products": list(dict.fromkeys(products)),
        "gpus": any(each.rank.gpu is not None for each in every),
        "rows": [_row(each, phases, several=several, binned=subject.bin_s is not None) for each in every],
    }


def _row(each: RankFigures, phases: list[str], *, several: bool, binned: bool) -> dict[str, Any]:
    rank = each.rank

    def mean(part: str, unit: str = "") -> str:
        return amount(each.means[part], unit) if part in each.means else "-"

    steps = "-" if each.steps is None else f"{'at least ' if binned else ''}{each.steps:,}"
    slow = ", ".join(f"{count} × by its {cause}" for cause, count in each.slow.most_common())
    numbers = [mean("step"), mean("wait"), *(mean(part) for part in phases if part != "wait")]
    return {
        "name": f"{rank.job}.{rank.number}" if several else str(rank.number),
        "host": rank.host or "this host",
        "device": "-" if rank.gpu is None else f"{rank.gpu}",
        "numbers": [*numbers, mean("wait_percent", "%"), mean("images"), steps],
        "slow": slow or "-",
        "end": "ran" if rank.alive else rank.reason or "ended",
    }


def _product(schema: Schema, rank: Rank) -> str:
    """What a rank's GPU is called; empty where that is not known."""
    if rank.gpu is None:
        return ""
    if rank.node:
        names = next((dict(enumerate(node.gpus)) for node in schema.nodes if node.id == rank.node), {})
    else:
        names = {gpu.index: gpu.name for gpu in schema.gpus}
    return names.get(rank.gpu, "")
