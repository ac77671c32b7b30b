"""What a run costs at a price per hour, and what loading takes of the processor.

Cost per step = price per hour / 3600 × seconds per step, as in the published comparison of machines with and without
CPU machines beside them; whoever saves step time saves the same share of the cost, at the same price.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import MonitorError
from .model import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import EpochCount, Stretch


def cost_per_step(per_hour: float, step_s: float) -> float:
    """What a step of `step_s` seconds costs, in whole units of the price's currency; NaN for NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    if not (math.isfinite(per_hour) and per_hour >= 0):
        raise MonitorError(f"A price per hour is 0 or more, not {per_hour}.")
    return per_hour / 3600.0 * step_s


def costs(
    stretches: Sequence[Stretch], epochs: Sequence[EpochCount], per_hour: float, currency: str
) -> tuple[Cost, ...]:
    """What each stretch cost per step, per epoch and per 1,000 images.

    Per epoch: the samples of an epoch of its loader that delivered its plan (the newest such one), at the stretch's
    rate. Where no epoch did, it is NaN.

    Raises:
        MonitorError: the price is negative or no number.
    """
    whole = {one.loader: one.samples for one in epochs if one.finished and one.problem is None and one.samples}
    found = []
    for one in stretches:
        a_sample = cost_per_step(per_hour, 1.0 / one.rate if one.rate > 0 else math.nan)
        found.append(
            Cost(
                stretch=one.key,
                per_hour=per_hour,
                currency=currency,
                per_step=cost_per_step(per_hour, one.step / 1e3),
                per_epoch=a_sample * whole.get(one.loader, math.nan),
                per_thousand=1000 * a_sample,
            )
        )
    return tuple(found)


def cpu_per_image(stretch: Stretch) -> float:
    """CPU seconds that loading one image took; NaN where they cannot be told from the rest."""
    if stretch.samples == 0 or stretch.backend.startswith("dali") or stretch.synthetic:
        return math.nan
    if stretch.knobs.get("workers") == 0:
        return stretch.wait / 1e3 * stretch.batches / stretch.samples
    return stretch.workers_cpu_seconds / stretch.samples


def rate_without_wait(stretch: Stretch) -> float:
    """Images per second if there were always a batch; NaN where a step is nothing but waiting."""
    each = stretch.samples / stretch.batches if stretch.batches else math.nan
    busy = stretch.step - stretch.wait
    if stretch.on_device:  # the GPU's own time passes in the loop's waits, too
        busy = max(busy, sum(time for phase, time in stretch.phases.items() if phase != "other"))
    return 1e3 * each / busy if busy > 0 else math.nan
