"""The cost of a session at a price per hour, and the cores that it would take to feed its loop.

Cost per step = price per hour / 3600 × seconds per step, as in the published comparison of machines with and without
CPU machines beside them: saved step time saves the same share of the cost, at the same price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import MonitorError
from ..store import Rows, Snapshot
from . import advice
from .advice import Decision, cpu_per_image, rate_without_wait
from .frames import usable_cores
from .job_figures import ranks_by_job, throughput
from .loops import FEWEST_STEPS, training_segments
from .results import Cost, EpochCount, Feeding, Segment


def cost_per_step(per_hour: float, step_s: float) -> float:
    """Return what a step of `step_s` seconds costs, in whole units of the price's currency; NaN for NaN.

    Raises a `MonitorError` for a price that is negative or no number.
    """
    if not (math.isfinite(per_hour) and per_hour >= 0):
        raise MonitorError(f"A price per hour is 0 or more, not {per_hour}.")
    return per_hour / 3600.0 * step_s


def node_price(snapshot: Snapshot) -> float | None:
    """Return the session's price of an hour of a CPU machine; None without one, or if a recording holds no number."""
    return number(snapshot.facts.get("node_price"))


def number(value: object) -> float | None:
    """Return a finite number of a session's facts, which may hold anything; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def hourly(segment: Segment, per_hour: float, per_node: float | None) -> float:
    """Return what an hour of all machines of a segment costs; without a price per node, of the one that trains."""
    return per_hour + segment.nodes * (per_node or 0.0)


def costs(
    segments: Sequence[Segment],
    epochs: Sequence[EpochCount],
    price: float,
    currency: str,
    per_node: float | None = None,
) -> tuple[Cost, ...]:
    """Return what each segment cost per step, per epoch and per 1,000 images, at prices of an hour.

    Per epoch: the samples of an epoch of its loader that delivered its plan (the newest such one), at the segment's
    rate. Where no epoch did, it is NaN.
    """
    finished = [count for count in epochs if count.finished and count.problem is None and count.samples]
    whole = {count.loader: count.samples for count in finished}
    found = []
    for segment in segments:
        per_hour = hourly(segment, price, per_node)
        of_sample = cost_per_step(per_hour, 1.0 / segment.rate if segment.rate > 0 else math.nan)
        found.append(
            Cost(
                segment=segment.key,
                per_hour=per_hour,
                currency=currency,
                per_step=cost_per_step(per_hour, segment.step / 1e3),
                per_epoch=of_sample * whole.get(segment.loader, math.nan),
                per_thousand=1000 * of_sample,
                nodes=segment.nodes,
                priced=segment.nodes == 0 or per_node is not None,
            )
        )
    return tuple(found)


def feeding(
    snapshot: Snapshot, segments: Sequence[Segment], decisions: Mapping[str, Decision], stands: Segment | None
) -> Feeding | None:
    """Return how many cores this loop would need, of the newest segment that can tell, and the next thing to do.

    Cores needed = CPU seconds per image × images/s if the loop never waited. A loop that stands beside another
    (`loops.secondary`) tells nothing. `segments` are in the order of time, `decisions` by their keys; the advice is on
    `stands`, which stands for the session. None without a loader's deliveries; replayed batches are none.
    """
    real = [segment for segment in training_segments(segments) if not segment.synthetic and segment.steps > 0]
    if not real:
        return None
    enough = [segment for segment in real if segment.steps >= FEWEST_STEPS] or real
    chosen = next((one for one in reversed(enough) if math.isfinite(cpu_per_image(one))), enough[-1])
    each, could = cpu_per_image(chosen), rate_without_wait(chosen)
    decision = None if stands is None else decisions.get(stands.key)
    advised = () if decision is None else advice.feeding(decision)
    return Feeding(chosen.key, each, each * could, usable_cores(snapshot.schema), advised)


# ---- The cost of a job of several ranks: each host of its ranks is a machine at the price of this one.


def job_costs(rows: Rows, price: float, currency: str) -> tuple[Cost, ...]:
    """Return what each job cost per step of all its ranks and per 1,000 images, at a price of an hour of one machine.

    Jobs of one rank, and those with too few steps (`throughput`), are left out. Per epoch is NaN: how long the
    epochs of ranks are is not known here.
    """
    found = []
    for job, ranks in ranks_by_job(rows).items():
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
