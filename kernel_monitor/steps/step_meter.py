"""The step meter: it counts and keeps the steps of a loop. One thread writes, any thread reads."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from math import isnan, nan
from typing import NamedTuple

from ..plugins import plugin
from . import boundary, phase_times
from .measured_step import NO_GRADIENTS, ON_DEVICE, PHASES, WARM_UP, Step
from .phase_times import KINDS, OUTSIDE, Mark, Trail, thread_phases, watched_models

STEPS_KEPT = 4096  # the newest steps of a source, which are kept one by one
WARM_UP_STEPS = 3
"""The first steps of a source are warm-up; so is the first step of each iteration, whose batch was not prefetched."""
PENDING = 64  # steps that may wait for the GPU's times; if there are more, the oldest keeps the host's times
LATE_S = 1.0  # seconds after the end of an iteration in which its last steps wait for the GPU's times
_FORGOTTEN_S = 60.0  # seconds that the steps of an iteration wait that was left without an end

_SEEN_BITS = (1, 2, 4, 8)  # of copy, forward, backward, optimizer
_ALL_SEEN = 15


class Totals(NamedTuple):
    """Sums since the loader was wrapped."""

    images: int  # samples delivered
    steps: int  # steps ended; a step lasts from one request for a batch to the next
    wait_s: float  # s, waits for the batch in the `waited` steps
    step_s: float  # s, durations of the steps
    phased: int = 0  # steps whose phases were measured and are settled
    copy_s: float = 0.0  # copy_s, forward_s, backward_s, optimizer_s: s, phases of those; 0 for an unmeasured phase
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    phased_step_s: float = 0.0  # s, durations of the `phased` steps
    phased_wait_s: float = 0.0  # s, waits of the `phased` steps; 0 for an unmeasured wait
    waited: int = 0  # steps whose wait was measured: all steps of a loader, those of `monitor.step` that called `got`


class Meter:
    """The totals and the newest steps of a loader. Each value is replaced as a whole, so that readers need no lock."""

    def __init__(self, loader: str = "") -> None:
        self.loader = loader  # the source's id
        self._totals = (0, 0, 0.0, 0.0, 0)  # images, steps, wait_s, step_s, waited
        self._phases: tuple[float, ...] = (0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # `phased` to `phased_wait_s` of the totals
        self._steps: list[Step | None] = [None] * STEPS_KEPT  # step n, from 0, stands at n % STEPS_KEPT
        self._settled = 0  # number of steps with final times
        self._pending: deque[tuple[Step, Trail | None, int]] = (
            deque()
        )  # the steps after them, with bits of their phases
        self._settling = threading.Lock()  # nobody waits for it
        self.idle = True  # no iteration is under way
        self.seen = 0  # bits of the phases that this source has had

    def totals(self) -> Totals:
        """Return the sums so far."""
        images, steps, wait_s, step_s, waited = self._totals
        return Totals._make((images, steps, wait_s, step_s, *self._phases, waited))

    @property
    def count(self) -> int:
        """The number of steps that have ended."""
        return self._totals[1]

    def add(self, images: int) -> None:
        """Count samples that the loop received."""
        self._totals = (self._totals[0] + images, *self._totals[1:])

    def step(self, step: Step, trail: Trail | None = None, seen: int = 0) -> None:
        """Count a step that ended.

        Args:
            step: the step, with the host's times.
            trail: gives the GPU's times later; None if there are none.
            seen: bits of the phases that were measured.
        """
        images, steps, wait_s, step_s, waited = self._totals
        known = not isnan(step.wait)
        self._totals = (images, steps + 1, wait_s + (step.wait if known else 0.0), step_s + step.step, waited + known)
        if trail is None and not self._pending:
            self._keep(step, seen)
            return
        self._pending.append((step, trail, seen))
        self._settle(by_loop=True)

    def _settle(self, *, by_loop: bool) -> None:
        """Keep the pending steps that have their final times.

        Only the loop's thread queries the GPU's times; other threads keep, with the host's times, old pending steps.
        """
        if not self._settling.acquire(blocking=False):
            return  # another thread settles at the same time
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

    def end_iteration(self) -> None:
        """Note the end of an iteration; for the loop's thread."""
        self.idle = True
        if self._pending:
            self._settle(by_loop=True)

    def steps_since(self, number: int) -> tuple[list[Step], int]:
        """Return the kept steps after the first `number` steps, oldest first, and the number of all steps so far.

        A step counts once its phases are final: on a GPU that is some steps late.
        """
        if self._pending:
            self._settle(by_loop=False)
        newest = self._settled
        first = max(number, newest - STEPS_KEPT)
        steps = [self._steps[place % STEPS_KEPT] for place in range(first, newest)]
        # The loop goes on meanwhile, and may have replaced the oldest of these steps by newer ones.
        lost = max(0, self._settled - STEPS_KEPT + 1 - first)
        return [step for step in steps[lost:] if step is not None], newest

    def _keep(self, step: Step, seen: int) -> None:
        self._steps[self._settled % STEPS_KEPT] = step
        self._settled += 1
        if seen:
            phased, copy, forward, backward, optimizer, whole, wait = self._phases
            self._phases = (
                phased + 1,
                copy if isnan(step.copy) else copy + step.copy,
                forward if isnan(step.forward) else forward + step.forward,
                backward if isnan(step.backward) else backward + step.backward,
                optimizer if isnan(step.optimizer) else optimizer + step.optimizer,
                whole + step.step,
                wait if isnan(step.wait) else wait + step.wait,
            )


class StepClock:
    """A clock of the steps of an iteration, for the thread that iterates."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._asked: float | None = None  # time of the request for the batch of the step under way
        self._waited = nan
        self._batch = (0, 0, 0)  # epoch, number, samples
        self._first = True  # no step of this iteration has ended
        self._flags = 0
        self._mark: Mark | None = None  # the thread's phases when the batch came
        self._outside = 0.0  # the thread's s outside of all steps when the step began
        self._trail: Trail | None = None
        if not watched_models.count:
            meter.seen = 0
        ranks = plugin("ranks")
        if ranks is not None:
            ranks.follow(meter)  # sends the steps of this process if it is a rank of a job
        if phase_times.on_loop_start is not None:
            phase_times.on_loop_start()

    def __del__(self) -> None:
        self._meter.idle = True  # may run on any thread

    def ask(self, now: float | None = None) -> None:
        """End the step under way and begin the next: the loop requests a batch."""
        now = time.monotonic() if now is None else now
        meter, phases = self._meter, thread_phases()
        phases.asked += 1
        if self._asked is not None:
            self._end(now, self._asked)
        meter.idle = False
        flags = WARM_UP if self._first or meter.count < WARM_UP_STEPS else 0
        if boundary.waiting:
            spent, more = self._run_boundary_calls()
            now, flags = now + spent, flags | more
        if _no_gradients():
            flags |= NO_GRADIENTS
        self._flags = flags
        self._asked = now
        self._outside = phases.spent[OUTSIDE]
        if phases.on_device and phase_times.stamps is not None and (watched_models.count or meter.seen):
            trail = Trail(phase_times.stamps)
            if trail.add(-1, trail.now()):
                self._trail = trail

    def skip_wait(self) -> None:
        """Begin the work of the step without a measured wait, unless `got` follows."""
        self._received(time.monotonic())

    def got(self, images: int, now: float | None = None, *, epoch: int = 0, batch: int = 0) -> None:
        """End the wait: the loop receives batch number `batch` of its epoch, with `images` samples."""
        now = time.monotonic() if now is None else now
        if self._asked is not None:
            self._waited = now - self._asked
            self._received(now)
        self._batch = (epoch, batch, images)
        self._meter.add(images)

    def finish(self, epoch: int, batch: int) -> None:
        """End the step under way, batch number `batch` of its epoch, without a next step."""
        if self._asked is not None:
            self._batch = (epoch, batch, self._batch[2])
            self._end(time.monotonic(), self._asked)
            self._batch = (epoch, batch, 0)
        self._meter.end_iteration()

    def stop(self) -> None:
        """Drop the step under way and end the iteration: no batch came."""
        self._asked = None
        self._drop_trail(thread_phases().trails)
        self._meter.end_iteration()

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
            if meter.seen != _ALL_SEEN:
                for bit, seconds in zip(_SEEN_BITS, spent, strict=False):
                    if seconds > 0.0:
                        meter.seen |= bit
            durations = _phase_durations(spent, meter.seen)
        trail = self._trail
        if trail is not None:
            self._drop_trail(phases.trails)
            trail.add(-1, trail.now())
        step = Step._make((now, *self._batch, self._waited, whole, *durations, flags))
        self._mark, self._waited = None, nan
        meter.step(step, trail if meter.seen else None, meter.seen)

    def _drop_trail(self, trails: list[Trail]) -> None:
        if self._trail in trails:
            trails.remove(self._trail)
        self._trail = None

    def _run_boundary_calls(self) -> tuple[float, int]:
        """Make the calls of this boundary; return the s that they took and the flags for the step that begins."""
        phases, began = thread_phases(), time.monotonic()
        phases.enter(OUTSIDE)
        try:
            flags = boundary.run(self._meter.loader, self._meter.count)
        finally:
            phases.leave(OUTSIDE)
        return time.monotonic() - began, flags


def _no_gradients() -> bool:
    # The attribute is missing without PyTorch, and while another thread imports it.
    enabled = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return enabled is not None and not enabled()


def _phase_durations(spent: list[float], seen: int) -> list[float]:
    """Return copy, forward, backward, optimizer in s; NaN for a phase that the source never had."""
    copy, forward, backward, optimizer = spent[:4]
    return [
        copy if seen & 1 else nan,
        forward if seen & 2 else nan,
        backward if seen & 4 else nan,
        optimizer if seen & 8 else nan,
    ]


def _on_device(step: Step, trail: Trail, seen: int) -> Step:
    """Return the step with the GPU's times, or unchanged if they are not known."""
    times = trail.times(KINDS)
    if times is None:
        return step
    wait, whole, spent = times
    wait = nan if isnan(step.wait) else wait
    return Step._make((*step[:4], wait, whole, *_phase_durations(spent, seen), step.flags | ON_DEVICE))
