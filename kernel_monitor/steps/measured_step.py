"""One step as everything that measures, keeps and records steps passes it on."""

from __future__ import annotations

from typing import NamedTuple

WARM_UP = 1  # one of the first steps: engines, caches and autotuning were still finding their way
PROFILED = 2  # the profiler ran during this step, which is slower for it
ON_DEVICE = 4  # wait, step and phases are times of the GPU (CUDA events), not of the host: see `docs/steps.md`
NO_GRADIENTS = 8  # PyTorch's gradients were off when the step asked for its batch: an evaluation

PHASES = ("copy", "forward", "backward", "optimizer")
"""The phases of a step beside the wait; what is left of the step is `other`."""


class Step(NamedTuple):
    """One step, from one request for a batch to the next. Durations in s; NaN: not measured."""

    end: float  # when the next batch was asked for, by `time.monotonic()` (in recordings: session s)
    epoch: int  # epoch, batch: the batch's place (from 0)
    batch: int
    images: int  # samples in the batch
    wait: float  # for the batch
    step: float  # the whole
    copy: float = float("nan")  # copy, forward, backward, optimizer: the phases, exclusive of each other
    forward: float = float("nan")
    backward: float = float("nan")
    optimizer: float = float("nan")
    flags: int = 0  # `WARM_UP`, `PROFILED`, `ON_DEVICE`, `NO_GRADIENTS`
