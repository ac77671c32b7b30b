"""What a job of several ranks costs: each host of its ranks is a machine at the price of this one."""

from __future__ import annotations

import math

from ..store import Rows
from .cost import cost_per_step
from .results import Cost
from .scaling import jobs_of, throughput


def job_costs(rows: Rows, price: float, currency: str) -> tuple[Cost, ...]:
    """What each job cost per step of all its ranks and per 1,000 images, at a price of an hour of one machine.

    Jobs of one rank, and those with too few steps (`scaling.throughput`), are left out. Per epoch is NaN: how long the
    epochs of ranks are is not known here.
    """
    found = []
    for job, ranks in jobs_of(rows).items():
        known = throughput(rows, ranks) if len(ranks) > 1 else None
        if known is None:
            continue
        hosts = len({rank.host for rank in ranks})
        where = "one machine" if hosts == 1 else f"{hosts} machines"
        counts = f"about {known.images:,} images in {known.steps:,} steps of each"
        per_hour = hosts * price
        found.append(
            Cost(
                segment=f"job {job}",
                per_hour=per_hour,
                currency=currency,
                per_step=cost_per_step(per_hour, known.seconds / known.steps),
                per_epoch=math.nan,
                per_thousand=1000 * cost_per_step(per_hour, 1 / known.rate),
                basis=f"{known.ranks} ranks on {where}: {counts}",
            )
        )
    return tuple(found)
