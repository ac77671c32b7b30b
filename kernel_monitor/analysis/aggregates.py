"""What a part of a session measured: the machine row by row, and a loader's deliveries with their counts (`measure`).

The kernel's reader thread runs this once a second while training goes on. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .frames import Floats, Frames

if TYPE_CHECKING:
    from ..store import StepTable
    from .frames import Table


@dataclass(frozen=True)
class Measured:
    """A part of a session, counted only while the loader was delivering.

    Every array has the values of the rows that have one (no NaN), in % unless another unit is named.

    Attributes:
        start, end: its limits, session s.
        seconds: how long the loader was delivering in it.
        samples: how many samples it delivered in those seconds.
        cpu, iowait: mean of the logical cores that this process may use.
        gpu, gpu_memory: mean of the GPUs in use; empty without one.
        memory: host memory in use.
        wait, step: ms, the mean of the steps that ended in the row.
        mean_wait, mean_step: ms, over all steps (rows weighted by what they delivered); NaN without a step.
    """

    start: float
    end: float
    seconds: float
    samples: float
    cpu: Floats
    iowait: Floats
    gpu: Floats
    gpu_memory: Floats
    memory: Floats
    wait: Floats
    step: Floats
    mean_wait: float
    mean_step: float

    @property
    def rate(self) -> float:
        """Samples per second really delivered; NaN when no time was counted."""
        return self.samples / self.seconds if self.seconds > 0 else float("nan")


def measure(table: Table, loader: str | None, start: float, end: float, steps: StepTable | None = None) -> Measured:
    """Aggregate the rows in `(start, end]` (session s) in which `loader` (its id; None: at any time) was delivering.

    The rows of steps that do not count (`counted_steps`) are left out; a snapshot brings its own `steps`.
    """
    frames = Frames(table, steps, start, end)
    rows = np.arange(len(frames.time)) if loader is None else frames.of(loader)
    window, delivered = frames.window[rows], frames.samples(loader)[rows]
    wait, step = (frames.series(f"loader/{loader}/{name}")[rows] for name in ("wait", "step"))
    return Measured(
        start=start,
        end=end,
        seconds=float(window.sum()),
        samples=float(delivered.sum()),
        cpu=_present(frames.cpu[rows]),
        iowait=_present(frames.iowait[rows]),
        gpu=_present(frames.gpu[rows]),
        gpu_memory=_present(frames.mean_gpu_memory[rows]),
        memory=_present(frames.series("memory/percent")[rows]),
        wait=_present(wait),
        step=_present(step),
        mean_wait=_weighted(wait, delivered),
        mean_step=_weighted(step, delivered),
    )


def _present(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _weighted(values: Floats, weights: Floats) -> float:
    present = np.isfinite(values)
    if not present.any():
        return float("nan")
    return float(np.average(values[present], weights=weights[present] if weights[present].sum() > 0 else None))
