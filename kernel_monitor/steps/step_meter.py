"""How long a loop waits for data and what it does with it, step by step. Written by one thread, read by any."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from math import isnan, nan
from typing import NamedTuple

from ..plugins import plugin
from . import boundary, cuda_times
from .cuda_times import Trail
from .measured_step import NO_GRADIENTS, ON_DEVICE, PHASES, WARM_UP, Step
from .phases import KINDS, OUTSIDE, Mark, thread_phases, watched

STEPS_KEPT = 4096  # steps of which more than their sum is known, the newest of a loader
WARM_UP_STEPS = 3
"""The first steps of a source, which are warm-up; so is the first of each iteration, whose batch was not prefetched."""
PENDING = 64  # steps that may wait for the GPU's times; with more, the oldest is kept with the host's times
LATE_S = 1.0  # how long after the end of an iteration its last steps wait for the GPU's times
_FORGOTTEN_S = 60.0  # the same for an iteration that was left without being ended

_SEEN_BITS = (1, 2, 4, 8)


class Totals(NamedTuple):
    """Cumulative since the loader was wrapped."""

    images: int  # samples delivered
    steps: int  # steps ended. A step goes from one request for a batch to the next
    wait_s: float  # s, the waits for their batch of the `waited` steps
    step_s: float  # s, the steps' whole durations
    phased: int = 0  # steps with phases, as far as these are settled
    copy_s: float = 0.0  # copy_s, forward_s, backward_s, optimizer_s: s, their phases; 0 for one that was not measured
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    phased_step_s: float = 0.0  # s, their durations
    phased_wait_s: float = 0.0  # s, their waits; 0 where one was not measured
    waited: int = 0  # steps whose wait was measured: all of a loader, of `monitor.step` those that called `got`


class Meter:
    """Totals of all iterations of a loader. Each value is replaced as a whole, so that readers need no lock."""

    def __init__(self, loader: str = "") -> None:
        self.loader = loader  # the source's id
        self._totals = (0, 0, 0.0, 0.0, 0)  # images, steps, wait_s, step_s, waited
        self._phases: tuple[float, ...] = (0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # the totals from `phased` on
        self._steps: list[Step | None] = [None] * STEPS_KEPT  # step n, from 0, stands at n % STEPS_KEPT
        self._settled = 0  # steps of which everything is known
        self._pending: deque[tuple[Step, Trail | None, int]] = deque()  # those after them; bits of the phases seen
        self._settling = threading.Lock()  # never waited for
        self.idle = True  # no iteration is under way
        self.seen = 0  # bits of the phases that this source has had

    def totals(self) -> Totals:
        images, steps, wait_s, step_s, waited = self._totals
        return Totals._make((images, steps, wait_s, step_s, *self._phases, waited))

    @property
    def count(self) -> int:
        return self._totals[1]

    def add(self, images: int) -> None:
        """The loop received so many samples."""
        self._totals = (self._totals[0] + images, *self._totals[1:])

    def step(self, step: Step, trail: Trail | None = None, seen: int = 0) -> None:
        """A step ended, with these bits of phases measured; its trail will give the GPU's times of them."""
        images, steps, wait_s, step_s, waited = self._totals
        known = not isnan(step.wait)
        self._totals = (images, steps + 1, wait_s + (step.wait if known else 0.0), step_s + step.step, waited + known)
        if trail is None and not self._pending:
            self._keep(step, seen)
            return
        self._pending.append((step, trail, seen))
        self._settle(by_loop=True)

    def _settle(self, *, by_loop: bool) -> None:
        """Keep the steps of which everything is known.

        Only the loop's thread asks for the GPU's times; others keep, with the host's times, the steps that it has left.
        """
        if not self._settling.acquire(blocking=False):
            return  # the loop's thread and a reader at once
        late = time.monotonic() - (LATE_S if self.idle else _FORGOTTEN_S)
        try:
            while self._pending:
                step, trail, seen = self._pending[0]
                if not by_loop:
                    if step.end >= late:
                        break
                elif trail is not None and trail.done():
                    step = _on_device(step, trail, seen)
                elif trail is not None and len(self._pending) <= PENDING:
                    break
                self._keep(step, seen)
                self._pending.popleft()
        finally:
            self._settling.release()

    def ends(self) -> None:
        """An iteration ended, on the loop's thread."""
        self.idle = True
        if self._pending:
            self._settle(by_loop=True)

    def steps_since(self, number: int) -> tuple[list[Step], int]:
        """The steps after the first `number` ones, oldest first, as far as they are kept; and how many there were.

        Steps count once their phases are known: those on a GPU come up to some steps late.
        """
        if self._pending:
            self._settle(by_loop=False)
        newest = self._settled
        first = max(number, newest - STEPS_KEPT)
        steps = [self._steps[place % STEPS_KEPT] for place in range(first, newest)]
        # The loop goes on meanwhile, and may have put the next steps in the places of the oldest.
        lost = max(0, self._settled - STEPS_KEPT + 1 - first)
        return [step for step in steps[lost:] if step is not None], newest

    def _keep(self, step: Step, seen: int) -> None:
        self._steps[self._settled % STEPS_KEPT] = step
        self._settled += 1
        if seen:
            known = (1, step.copy, step.forward, step.backward, step.optimizer, step.step, step.wait)
            self._phases = tuple(
                total + (0.0 if isnan(more) else more) for total, more in zip(self._phases, known, strict=True)
            )


class StepClock:
    """Times the steps of one iteration, on the thread that iterates."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._asked: float | None = None  # when the step under way asked for its batch
        self._waited = nan
        self._batch = (0, 0, 0)  # epoch, number, samples
        self._first = True  # no step of this iteration has ended
        self._flags = 0
        self._mark: Mark | None = None  # the thread's state when the batch came
        self._outside = 0.0  # s outside of all steps, of the thread, when the step began
        self._trail: Trail | None = None
        if not watched.models:
            meter.seen = 0
        ranks = plugin("ranks")
        if ranks is not None:
            ranks.follow(meter)  # sends the steps of this process if it is a rank of a job

    def __del__(self) -> None:
        self._meter.idle = True  # on whatever thread that is noticed

    def ask(self, now: float | None = None) -> None:
        """The loop asks for a batch: the step under way ends."""
        now = time.monotonic() if now is None else now
        meter, phases = self._meter, thread_phases()
        if self._asked is not None:
            self._end(now, self._asked)
        meter.idle = False
        flags = WARM_UP if self._first or meter.count < WARM_UP_STEPS else 0
        if boundary.waiting:
            spent, more = self._outside_of_steps()
            now, flags = now + spent, flags | more
        if _no_gradients():
            flags |= NO_GRADIENTS
        self._flags = flags
        self._asked = now
        self._outside = phases.spent[OUTSIDE]
        if phases.on_device and cuda_times.stamps is not None and (watched.models or meter.seen):
            trail = Trail(cuda_times.stamps)
            if trail.add(-1, trail.now()):
                self._trail = trail

    def went_on(self) -> None:
        """The step has its batch, or needs none; its wait is not measured unless `got` follows."""
        self._received(time.monotonic())

    def got(self, images: int, now: float | None = None, *, epoch: int = 0, batch: int = 0) -> None:
        """The loop receives a batch of `images` samples: batch number `batch` of its epoch."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._waited = now - self._asked
            self._received(now)
        self._batch = (epoch, batch, images)
        self._meter.add(images)

    def finish(self, epoch: int, batch: int) -> None:
        """The step under way, batch number `batch` of its epoch, ends, and none begins."""
        if self._asked is not None:
            self._batch = (epoch, batch, self._batch[2])
            self._end(time.monotonic(), self._asked)
            self._batch = (epoch, batch, 0)
        self._meter.ends()

    def stop(self) -> None:
        """No batch came: what was asked for last is no step."""
        self._asked = None
        self._let_go(thread_phases().trails)
        self._meter.ends()

    def _received(self, now: float) -> None:
        phases, trail = thread_phases(), self._trail
        self._mark = phases.mark(now)
        if trail is not None and trail.add(phases.kind, trail.now()):
            trail.got()
            if trail not in phases.trails:
                phases.trails.append(trail)

    def _end(self, now: float, asked: float) -> None:
        meter, phases = self._meter, thread_phases()
        self._asked = None
        whole = now - asked - (phases.spent[OUTSIDE] - self._outside)
        self._first, flags = False, self._flags
        spent = None if self._mark is None else phases.since(self._mark, now)
        if spent is None:
            meter.seen = 0
            durations = [nan] * len(PHASES)
        else:
            for bit, seconds in zip(_SEEN_BITS, spent, strict=False):
                if seconds > 0.0:
                    meter.seen |= bit
            durations = _seen(spent, meter.seen)
        trail = self._trail
        if trail is not None:
            self._let_go(phases.trails)
            trail.add(-1, trail.now())
        step = Step._make((now, *self._batch, self._waited, whole, *durations, flags))
        self._mark, self._waited = None, nan
        meter.step(step, trail if meter.seen else None, meter.seen)

    def _let_go(self, trails: list[Trail]) -> None:
        if self._trail in trails:
            trails.remove(self._trail)
        self._trail = None

    def _outside_of_steps(self) -> tuple[float, int]:
        """Make the calls of this boundary; returns the s they took and the flags for the step that begins."""
        phases, began = thread_phases(), time.monotonic()
        phases.enter(OUTSIDE)
        try:
            flags = boundary.run(self._meter.loader, self._meter.count)
        finally:
            phases.leave(OUTSIDE)
        return time.monotonic() - began, flags


def _no_gradients() -> bool:
    # Not there without PyTorch, nor while another thread imports it.
    enabled = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return enabled is not None and not enabled()


def _seen(spent: list[float], seen: int) -> list[float]:
    """copy, forward, backward, optimizer, NaN for one of which nothing was ever seen."""
    return [seconds if seen & bit else nan for bit, seconds in zip(_SEEN_BITS, spent, strict=False)]


def _on_device(step: Step, trail: Trail, seen: int) -> Step:
    """The step in the GPU's own time, or unchanged if that is not known."""
    times = trail.times(KINDS)
    if times is None:
        return step
    wait, whole, spent = times
    wait = nan if isnan(step.wait) else wait
    return Step._make((*step[:4], wait, whole, *_seen(spent, seen), step.flags | ON_DEVICE))
