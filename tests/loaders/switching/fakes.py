"""In-process engines that keep the engines' contract, fail when they are told to, and notice when it is broken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.loaders.engines.backends import SPECS
from kernel_monitor.loaders.engines.engine import Delivery, Engine, Pull, Setting, Spec
from kernel_monitor.loaders.plan import Skipped, Slot, mark_plain

from .schedule import Config, PlannedFailure

BACKENDS = ("torchvision", "dali-cpu", "dali-gpu")
CALLS = ("fail start", "fail pump", "fail receive", "fail prepare")
BUILDING = 0.002  # s, most that an engine takes to be prepared

Fakes = dict[str, Spec]


class FakeStage:
    """Counts moments inside the engines (ticks), and lets planted things happen at theirs."""

    anywhere = False
    collate = None

    def __init__(self, config: Config, dataset: Any, clicker: ThreadPoolExecutor) -> None:
        self.config = config
        self.dataset = dataset
        self.failing: set[str] = set()
        self.broken_rules: list[str] = []  # kept until the schedule's end: an engine's exceptions are recovered from
        self.built = threading.Event()  # engines being prepared may become ready
        self._clicker = clicker
        self._ticks = 0
        self._planted: list[tuple[int, str, SwitchableLoader]] = []
        self._asking = False

    def labels(self, batch: Any) -> list[int]:
        labels: list[int] = batch
        return labels

    def compare(self, batch: Any, epoch: int, drawn: list[tuple[int, int]]) -> None:
        """Do nothing: these batches have no samples."""

    def offers(self, loader: SwitchableLoader, what: str) -> bool:
        return True

    def plant(self, after: int, what: str, loader: SwitchableLoader) -> None:
        self._planted.append((self._ticks + after, what, loader))
        self.built.clear()

    @contextmanager
    def asking(self, *, beginning: bool = False) -> Iterator[None]:
        del beginning
        self._asking = True
        try:
            yield
        finally:
            self._asking = False

    def clear(self) -> None:
        self._planted.clear()
        self.failing.clear()
        self.built.set()
        assert self.broken_rules == []

    def tick(self) -> None:
        """A moment inside an engine, on the thread that iterates."""
        self._ticks += 1
        due = [planted for planted in self._planted if planted[0] <= self._ticks]
        for planted in due:
            _, what, loader = planted
            if what == "interrupt" and not self._asking:
                continue
            self._planted.remove(planted)
            if what == "interrupt":
                raise KeyboardInterrupt
            if what == "built":
                self.built.set()
            elif what in CALLS:
                self.failing.add(what)
            else:
                self._clicker.submit(click, what, loader).result(10)

    def rule(self, kept: bool, rule: str) -> None:
        """Note a rule of the engines' contract that was broken."""
        if not kept:
            self.broken_rules.append(rule)

    def fail(self, call: str) -> None:
        """Raise if this call is to fail."""
        if f"fail {call}" in self.failing:
            self.failing.discard(f"fail {call}")
            failure = PlannedFailure(call)
            mark_plain(failure)  # as from torch's own loader
            raise failure


def click(what: str, loader: SwitchableLoader) -> None:
    if "=" in what:
        knob, value = what.split("=")
        loader.set(**{knob: int(value)})
    else:
        loader.switch(what)


class FakeEngine:
    """Its batches are the indices. `eager`: takes by itself at its start and for each batch, as workers do; else when
    it is pumped, as DALI does.
    """

    def __init__(self, name: str, stage: FakeStage, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.broken = False
        self._stage = stage
        self._eager = stage.config.eager and name == "torchvision"
        self._pull: Pull | None = None
        self._queue: deque[Slot] = deque()
        self._inside = threading.Lock()

    def prepare(self) -> None:
        with self._alone():
            self._stage.built.wait(BUILDING)
            self._stage.fail("prepare")

    def start(self, pull: Pull) -> None:
        with self._alone():
            self.broken = True
            self._stage.tick()
            self._stage.fail("start")
            self._pull = pull
            self._queue.clear()
            self.broken = False
            if self._eager:
                self._fill()

    def pump(self, most: int | None = None) -> None:
        with self._alone():
            self._stage.rule(not self.broken, "a broken engine is started anew")
            self._stage.tick()
            self._stage.fail("pump")
            if not self._eager:
                self._fill(most=most)

    def receive(self) -> Delivery:
        with self._alone():
            self._stage.rule(not self.broken, "a broken engine is started anew")
            self._stage.rule(bool(self._queue), "only what is in flight is received")
            self._stage.tick()
            self._stage.fail("receive")
            delivery = self._compute(self._queue[0])
            self._stage.tick()
            if self._eager:
                self._fill(1)  # as the DataLoader does: before it hands out
            self._queue.popleft()
            return delivery

    def release(self) -> None:
        with self._alone():
            self._pull = None
            self._queue.clear()
            self.broken = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        entered = self._inside.acquire(blocking=False)
        self._stage.rule(entered, "calls never overlap")
        try:
            yield
        finally:
            if entered:
                self._inside.release()

    def _fill(self, more: int = 0, most: int | None = None) -> None:
        depth = self.depth + more if most is None else min(self.depth, len(self._queue) + most)
        while len(self._queue) < depth and self._pull is not None:
            self._stage.tick()
            slot = self._pull()
            if slot is None:
                return
            self._stage.rule(not self._queue or slot.number > self._queue[-1].number, "takes come in order")
            self._queue.append(slot)

    def _compute(self, slot: Slot) -> Delivery:
        config = self._stage.config
        bad = {row: index for row, index in enumerate(slot.indices) if index in config.bad}
        if bad and not config.skip:
            index = next(iter(bad.values()))
            error = SampleError(f"sample {index}", path="", index=index)
            return Delivery(slot.number, np.array(slot.indices, dtype=np.int64), None, error=error)
        kept = [index for row, index in enumerate(slot.indices) if row not in bad]
        return Delivery(
            slot.number,
            np.array(kept, dtype=np.int64),
            kept or None if bad else kept,
            decoders=[self.name] * len(kept),
            skipped={row: Skipped(index, "", "bad") for row, index in bad.items()},
        )


def specs(stage_now: Callable[[], FakeStage]) -> Fakes:
    """A registry of fakes, each built for the stage that is played on then."""

    def build(name: str) -> Callable[[Setting], Engine]:
        def built(setting: Setting) -> Engine:
            stage = stage_now()
            return FakeEngine(name, stage, setting.prefetch or stage.config.depth)

        return built

    return {name: Spec(name, lambda _: None, build(name), SPECS[name].uses) for name in BACKENDS}
