"""How long the training loop waits for data, step by step. Written by one thread, read by any."""

from __future__ import annotations

import time
from typing import NamedTuple

STEPS_KEPT = 4096
"""Steps of which more than their sum is known, the newest of a loader."""

Step = tuple[float, int, int, int, float, float]
"""One step: its end (`time.monotonic()`), its batch's epoch, number and samples, the wait for it and the whole, in s.

A plain tuple, because one is made in every step of a training loop.
"""


class Totals(NamedTuple):
    """Cumulative since the loader was wrapped.

    Attributes:
        images: samples delivered.
        steps: steps ended. A step goes from one request for a batch to the next.
        wait_s: s, the steps' waits for their batch.
        step_s: s, the steps' whole durations.
    """

    images: int
    steps: int
    wait_s: float
    step_s: float


class Meter:
    """Totals of all iterations of a loader. Each value is replaced as a whole, so that readers need no lock."""

    def __init__(self) -> None:
        self._totals = Totals(0, 0, 0.0, 0.0)
        self._steps: list[Step | None] = [None] * STEPS_KEPT  # step n, from 0, stands at n % STEPS_KEPT

    def totals(self) -> Totals:
        """The totals now."""
        return self._totals

    def add(self, images: int = 0, steps: int = 0, wait_s: float = 0.0, step_s: float = 0.0) -> None:
        """Add to the totals."""
        old = self._totals
        self._totals = Totals(old.images + images, old.steps + steps, old.wait_s + wait_s, old.step_s + step_s)

    def step(self, step: Step) -> None:
        """A step ended."""
        old = self._totals
        self._steps[old.steps % STEPS_KEPT] = step
        self._totals = Totals(old.images, old.steps + 1, old.wait_s + step[4], old.step_s + step[5])

    def steps_since(self, number: int) -> tuple[list[Step], int]:
        """The steps after the first `number` ones, oldest first, as far as they are kept; and how many there were."""
        newest = self._totals.steps
        first = max(number, newest - STEPS_KEPT)
        steps = [self._steps[place % STEPS_KEPT] for place in range(first, newest)]
        # The loop goes on meanwhile, and may have put the next steps in the places of the oldest.
        lost = max(0, self._totals.steps - STEPS_KEPT + 1 - first)
        return [step for step in steps[lost:] if step is not None], newest


class StepClock:
    """Times the steps of one iteration."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._asked: float | None = None  # when the step under way asked for its batch
        self._waited = 0.0
        self._batch = (0, 0, 0)  # epoch, number, samples

    def ask(self, now: float | None = None) -> None:
        """The loop asks for a batch: the step under way ends."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._meter.step((now, *self._batch, self._waited, now - self._asked))
        self._asked = now

    def got(self, images: int, now: float | None = None, *, epoch: int = 0, batch: int = 0) -> None:
        """The loop receives a batch of `images` samples: batch number `batch` of its epoch."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._waited = now - self._asked
        self._batch = (epoch, batch, images)
        self._meter.add(images=images)

    def stop(self) -> None:
        """No batch came: what was asked for last is no step."""
        self._asked = None
