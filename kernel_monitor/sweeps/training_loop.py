"""The loop of one row: it trains, switches engines, and measures windows of what is delivered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..analysis.switches import IN_FLIGHT
from ..errors import MonitorError
from ..runtime import monitor
from .grid import backend_of
from .training import Training

CHANGE_S = 180.0  # longest that another engine may take to deliver its first batch
MOST_WARM_UP = 64  # batches that are left out at most before a window


class CellFailed(MonitorError):
    """An engine of a row cannot be measured; the message is the cause. The other cells go on."""


@dataclass(frozen=True)
class Counted:
    """What the loader's own counters say was delivered: `replaced` samples were replayed ones."""

    batches: int = 0
    samples: int = 0
    replaced: int = 0
    skipped: int = 0
    decoded: dict[str, int] = field(default_factory=dict)

    def since(self, before: Counted) -> Counted:
        decoded = {name: count - before.decoded.get(name, 0) for name, count in self.decoded.items()}
        return Counted(
            self.batches - before.batches,
            self.samples - before.samples,
            self.replaced - before.replaced,
            self.skipped - before.skipped,
            {name: count for name, count in decoded.items() if count},
        )


@dataclass(frozen=True)
class Timed:
    """One window: its mark, s of wall time until its last step was done, and what was delivered in it."""

    label: str
    seconds: float
    steps: int
    counted: Counted
    epochs: int  # whole ones; 0: a window of some seconds


class TrainingLoop:
    """Trains on one loader for as long as it is asked to.

    `tell` is called between steps, for the progress. `failed`: a step failed with the engine in use; its batches are
    then taken without a step until another engine delivers.
    """

    def __init__(self, training: Training, tell: Callable[[], None], *, failed: bool = False) -> None:
        self._failed = failed
        self.loader = training.loader
        self._training = training
        self._tell = tell
        self._batches: Iterator[Any] | None = None
        self._before = Counted()  # what was delivered in epochs that have ended
        self._ended = 0  # epochs that came to their end
        self._entered: Any = None  # the newest epoch whose counts are in `_before`

    def change(self, engine: str) -> None:
        """Go on with an engine, and train until what was loaded in advance is used up.

        Raises:
            CellFailed: it cannot run here, did not start, or delivered nothing in `CHANGE_S`.
        """
        loader, name = self.loader, backend_of(engine)
        found = loader.backends.get(name)
        if found is None or not found.available:
            reason = (
                f"there is no such engine; there are {', '.join(loader.backends)}" if found is None else found.reason
            )
            raise CellFailed(f"{name}: {reason}")
        until = time.monotonic() + CHANGE_S
        if loader.switch_state.active != name:
            loader.switch(name)
        self._hand_over()
        while loader.backend != name or loader.switch_state.wanted is not None:
            clicks = loader.clicks
            if clicks and clicks[-1].target == name and clicks[-1].outcome == "failed":
                raise CellFailed(f"{name} did not start: {clicks[-1].message}")
            if time.monotonic() > until:
                raise CellFailed(f"{name} delivered nothing within {CHANGE_S:g} s of the switch.")
            self._hand_over()
        self._failed = False
        for _ in range(self.warm_up(name)):
            self._turn()
        self._check(name)

    def warm_up(self, name: str) -> int:
        """How many batches of an engine were, or may have been, loaded before its speed shows."""
        knobs = self.loader.knobs
        ahead = knobs.workers * knobs.prefetch if name in ("torchvision", "ray") else knobs.prefetch
        return min(max(IN_FLIGHT, ahead) + 1, MOST_WARM_UP)

    def measure(self, engine: str, label: str, seconds: float, steps: int) -> Timed:
        """A window of at least so many seconds and steps, marked with `label` in the recording.

        Raises:
            CellFailed: another engine delivered in it.
        """
        self._finish_device()
        before, ended, done = self._counted(), self._ended, 0
        began = time.monotonic()
        while done < steps or time.monotonic() - began < seconds:
            batch = self._next()
            if not done:
                monitor.mark(label)  # here, because the step before ends where this batch is asked for
            self._work(batch)
            done += 1
        return self._timed(engine, label, began, done, before, 0 if ended == self._ended else self._ended - ended)

    def measure_epochs(self, engine: str, label: str, epochs: int) -> Timed:
        """A window of whole epochs, which begins with a new iteration."""
        self._batches = None
        self._enter_ended()
        self._finish_device()
        before, done = self._counted(), 0
        began = time.monotonic()
        for number in range(epochs):
            for batch in self.loader:
                if not done:
                    monitor.mark(label)
                self._work(batch)
                done += 1
            if not done:
                raise CellFailed(f"epoch {number + 1} of {backend_of(engine)} delivered no batch.")
            self._enter_ended()
        return self._timed(engine, label, began, done, before, epochs)

    def _timed(self, engine: str, label: str, began: float, steps: int, before: Counted, epochs: int) -> Timed:
        self._finish_device()
        seconds = time.monotonic() - began
        self._check(backend_of(engine))
        return Timed(label, seconds, steps, self._counted().since(before), epochs)

    def _check(self, name: str) -> None:
        if self.loader.backend != name:
            raise CellFailed(f"{name} could not go on: {self.loader.switch_state.status}")

    def _hand_over(self) -> None:
        batch = self._next()
        if not self._failed:
            self._work(batch)

    def _turn(self) -> None:
        self._work(self._next())

    def _next(self) -> Any:
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self.loader)
            try:
                return next(self._batches)
            except StopIteration:
                self._batches = None
                self._enter_ended()
        raise CellFailed("an epoch delivered no batch.")

    def _work(self, batch: Any) -> None:
        self._training.step(batch)
        self._tell()

    def _finish_device(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _enter_ended(self) -> None:
        """The newest epoch has ended: later ones count on from what it delivered."""
        newest = self.loader.newest
        if newest is not None and newest is not self._entered:
            self._before = self._counted()
            self._ended += newest.finished
            self._entered = newest

    def _counted(self) -> Counted:
        newest, before = self.loader.newest, self._before
        if newest is None or newest is self._entered:
            return before
        decoded = dict(before.decoded)
        for name, count in newest.decoded.items():
            decoded[name] = decoded.get(name, 0) + count
        return Counted(
            before.batches + newest.batches,
            before.samples + newest.samples,
            before.replaced + newest.replaced,
            before.skipped + newest.skipped,
            decoded,
        )
