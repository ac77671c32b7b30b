"""The cost of segments at a price per hour, and the processor time that loading an image takes.

Cost per step = price per hour / 3600 × seconds per step, as in the published comparison of machines with and without
CPU machines beside them: saved step time saves the same share of the cost, at the same price.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import MonitorError
from .results import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import EpochCount, Segment


def cost_per_step(per_hour: float, step_s: float) -> float:
    """What a step of `step_s` seconds costs, in whole units of the price's currency; NaN for NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    if not (math.isfinite(per_hour) and per_hour >= 0):
        raise MonitorError(f"A price per hour is 0 or more, not {per_hour}.")
    return per_hour / 3600.0 * step_s


def costs(
    segments: Sequence[Segment], epochs: Sequence[EpochCount], per_hour: float, currency: str
) -> tuple[Cost, ...]:
    """What each segment cost per step, per epoch and per 1,000 images.

    Per epoch: the samples of an epoch of its loader that delivered its plan (the newest such one), at the segment's
    rate. Where no epoch did, it is NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    finished = [count for count in epochs if count.finished and count.problem is None and count.samples]
    whole = {count.loader: count.samples for count in finished}
    found = []
    for segment in segments:
        of_sample = cost_per_step(per_hour, 1.0 / segment.rate if segment.rate > 0 else math.nan)
        found.append(
            Cost(
                segment=segment.key,
                per_hour=per_hour,
                currency=currency,
                per_step=cost_per_step(per_hour, segment.step / 1e3),
                per_epoch=of_sample * whole.get(segment.loader, math.nan),
                per_thousand=1000 * of_sample,
            )
        )
    return tuple(found)


def cpu_per_image(segment: Segment) -> float:
    """CPU seconds that loading one image took; NaN where they are not separable from the rest."""
    if segment.samples == 0 or segment.backend.startswith("dali") or segment.synthetic:
        return math.nan
    if segment.knobs.get("workers") == 0:
        return segment.wait / 1e3 * segment.batches / segment.samples
    return segment.workers_cpu_seconds / segment.samples


def rate_without_wait(segment: Segment) -> float:
    """Images per second if there were always a batch; NaN where a step is nothing but waiting."""
    each = segment.samples / segment.batches if segment.batches else math.nan
    busy = segment.step - segment.wait
    if segment.on_device:  # the GPU's own time passes in the loop's waits, too
        busy = max(busy, sum(time for phase, time in segment.phases.items() if phase != "other"))
    return 1e3 * each / busy if busy > 0 else math.nan
