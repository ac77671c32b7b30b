"""Which steps count: the one place that decides it, for verdicts, segments, rules, *Diagnose* and comparisons.

A step counts unless it is

* flagged as warm-up or as profiled, or without a positive duration (a damaged recording);
* a pause: its own work (the step less its wait) takes longer than `PAUSE_S` and than `PAUSE_STEPS` times the median own
  work of the steps it is counted with. That is an evaluation or a checkpoint inside the step.

Own work is compared with own work, not with whole steps: a loop that waits for its data has long steps and little work,
so that an evaluation may be shorter than five of its steps. A wait is never too long to count, because what the loader
takes is what is measured. A step whose wait was not measured is all own work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..steps.measured_step import PROFILED, WARM_UP

PAUSE_S = 3.0
PAUSE_STEPS = 5.0


def flagged(steps: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """bool[n], which steps are of warm-up or were profiled."""
    found: npt.NDArray[np.bool_] = (steps["flags"] & (WARM_UP | PROFILED)) != 0
    return found


def counted(steps: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """bool[n], which of the `STEP`[n] of one loop count: of one loader, and of one segment where there are several."""
    whole = steps["step"].astype(np.float64)
    used: npt.NDArray[np.bool_] = ~flagged(steps) & (whole > 0)
    if used.any():
        own_work = whole - np.nan_to_num(steps["wait"].astype(np.float64))
        used &= own_work <= max(PAUSE_S, PAUSE_STEPS * float(np.median(own_work[used])))
    return used
