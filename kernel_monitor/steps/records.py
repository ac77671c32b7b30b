"""One step as everything that measures, keeps and records steps passes it on."""

from __future__ import annotations

from typing import NamedTuple

WARM_UP = 1
"""One of the first steps: engines, caches and autotuning were still finding their way."""
PROFILED = 2
"""The profiler ran during this step, which is slower for it."""
ON_DEVICE = 4
"""Wait, step and phases are times of the GPU (CUDA events), not of the host: see `docs/steps.md`."""
NO_GRADIENTS = 8
"""PyTorch's gradients were off when the step asked for its batch: an evaluation (of older sessions it is not known)."""

PHASES = ("copy", "forward", "backward", "optimizer")
"""The phases of a step beside the wait; what is left of the step is `other`."""


class Step(NamedTuple):
    """One step, from one request for a batch to the next. Durations in s; NaN: not measured.

    Attributes:
        end: when the next batch was asked for, by `time.monotonic()` (in recordings: session s).
        epoch, batch: the batch's place (from 0).
        images: samples in the batch.
        wait: for the batch.
        step: the whole.
        copy, forward, backward, optimizer: the phases, exclusive of each other.
        flags: `WARM_UP`, `PROFILED`, `ON_DEVICE`, `NO_GRADIENTS`.
    """

    end: float
    epoch: int
    batch: int
    images: int
    wait: float
    step: float
    copy: float = float("nan")
    forward: float = float("nan")
    backward: float = float("nan")
    optimizer: float = float("nan")
    flags: int = 0
