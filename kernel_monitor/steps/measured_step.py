"""The record of a measured step, which the step meter, the store, recordings and reports share."""

from __future__ import annotations

from typing import NamedTuple

WARM_UP = 1  # one of the first steps, in which engines start, caches fill and autotuning runs
PROFILED = 2  # the profiler ran during this step and slowed it down
ON_DEVICE = 4  # wait, step and phases are times of the GPU (CUDA events), not of the host: see `docs/steps.md`
NO_GRADIENTS = 8  # PyTorch's gradients were off when the step requested its batch: an evaluation

PHASES = ("copy", "forward", "backward", "optimizer")
"""The phases of a step beside the wait; the rest of the step is called `other`."""


class Step(NamedTuple):
    """A step, from one request for a batch to the next. Durations are in s; NaN: not measured."""

    end: float  # `time.monotonic()` of the request for the next batch (in recordings: session time in s)
    epoch: int  # the batch's epoch, from 0
    batch: int  # the batch's number in its epoch, from 0
    images: int  # samples in the batch
    wait: float  # duration of the wait for the batch
    step: float  # duration of the whole step
    copy: float = float("nan")  # copy, forward, backward, optimizer: durations of the phases, without overlap
    forward: float = float("nan")
    backward: float = float("nan")
    optimizer: float = float("nan")
    flags: int = 0  # the sum of those of `WARM_UP`, `PROFILED`, `ON_DEVICE`, `NO_GRADIENTS` that hold
