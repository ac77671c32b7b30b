"""How long the training loop waits for data, step by step. Written by one thread, read by any."""

from __future__ import annotations

import time
from typing import NamedTuple


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

    def totals(self) -> Totals:
        """The totals now."""
        return self._totals

    def add(self, images: int = 0, steps: int = 0, wait_s: float = 0.0, step_s: float = 0.0) -> None:
        """Add to the totals."""
        old = self._totals
        self._totals = Totals(old.images + images, old.steps + steps, old.wait_s + wait_s, old.step_s + step_s)


class StepClock:
    """Times the steps of one iteration."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._asked: float | None = None  # when the step under way asked for its batch
        self._waited = 0.0

    def ask(self, now: float | None = None) -> None:
        """The loop asks for a batch: the step under way ends."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._meter.add(steps=1, wait_s=self._waited, step_s=now - self._asked)
        self._asked = now

    def got(self, images: int, now: float | None = None) -> None:
        """The loop receives a batch of `images` samples."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._waited = now - self._asked
        self._meter.add(images=images)

    def stop(self) -> None:
        """No batch came: what was asked for last is no step."""
        self._asked = None
