"""The totals of each job, and the phases of its slowest and its median rank, from the newest values of its ranks.

The slowest is the one that `slow_rank` names; where it names none, the one with the largest time of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from ..ranks.rank import Rank, jobs_of
from .slow_rank import OWN, TOGETHER, SlowRank

PHASES = ("wait", "copy", "forward", "backward", "optimizer")


def job_phases(ranks: Sequence[Rank], values: Mapping[str, float], slow: Mapping[int, SlowRank]) -> dict[str, float]:
    """Values of `ranks.rank.job_series` in ms; what was not measured is left out, `other` is the rest of the step.

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
    """Images per second of all ranks, means of their steps and waits (ms), as far as each is known."""
    known = {
        part: [values[name] for rank in ranks if (name := f"rank/{rank.id}/{part}") in values]
        for part in ("images", "step", "wait")
    }
    found = {part: fmean(of) for part, of in known.items() if of}
    return {**found, "images": sum(known["images"])} if known["images"] else found


def _own(ranks: Sequence[Rank], values: Mapping[str, float]) -> list[float]:
    """The time of each rank's own per step (ms), as `slow_rank` has it."""
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
