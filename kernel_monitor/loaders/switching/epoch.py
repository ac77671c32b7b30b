"""One iteration of a loader: a cursor over one epoch's plan, and the engines that deliver it."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Protocol, cast

from ...steps.step_meter import Meter, StepClock
from ..dataset_changes import DatasetChanges
from ..engines.engine import Delivery
from ..engines.fork_server import NoWorkers
from ..engines.synthetic import KEPT, SyntheticEngine
from ..engines.synthetic import NAME as SYNTHETIC
from ..engines.torch_engine import NAME as TORCHVISION
from ..plan import Cursor, EpochRecord
from .engine_pool import EnginePool
from .pooled_engine import EngineRun
from .preparation import Preparation
from .switch import SwitchState


class EpochLoader(Protocol):
    """What an iteration needs of its `SwitchableLoader`."""

    turn: threading.RLock
    meter: Meter
    pool: EnginePool
    switch_state: SwitchState
    preparation: Preparation
    changes: DatasetChanges

    def __len__(self) -> int: ...

    def forget_unused(self, record: EpochRecord) -> None: ...


class EpochIterator:
    """What `iter(loader)` returns. Its batches are the plan's, in order, once each, whichever engine computes them."""

    def __init__(self, loader: EpochLoader, cursor: Cursor) -> None:
        self._loader = loader  # keeps the engines alive during the iteration
        self._state = loader.switch_state
        self._pool = loader.pool
        self._cursor = cursor
        self._record = cursor.record
        self._runs: deque[EngineRun] = deque()  # those before the last one only drain
        self._clock = StepClock(loader.meter)
        self._lead = 0.0  # s that `begin` took: counts as waiting for the first batch
        self._finished = False

    def __del__(self) -> None:
        """An iterator that never delivered costs neither an epoch nor a draw: some frameworks make one for a look."""
        self._loader.forget_unused(self._record)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader) - self._record.passed

    def begin(self) -> None:
        """Let the active engine start to work before the first batch is asked for."""
        self._state.record = self._record
        started = time.monotonic()
        while True:
            try:
                self._boundary()
                break
            except BaseException as error:  # noqa: BLE001 - raised again unless another engine can go on
                self._recover(error)
        self._cursor.fill()
        self._lead = time.monotonic() - started

    def __next__(self) -> Any:
        asked = time.monotonic()
        with self._loader.turn:
            self._clock.ask(asked - self._lead)
            self._lead = 0.0
            try:
                delivery = self._next_delivered()
            except BaseException:  # whatever ends the step, an interrupt too
                self._clock.stop()
                raise
            self._keep_for_synthetic(delivery)
            self._clock.got(len(delivery.indices), epoch=self._record.number, batch=delivery.number)
            return delivery.batch

    def _next_delivered(self) -> Delivery:
        """The next batch for the loop, or the exception that answers it.

        Batches of which every sample was skipped are recorded and passed over.
        """
        record = self._record
        while True:
            self._cursor.ask()
            delivery = self._receive()
            record.note(delivery.fallbacks)
            if delivery.error is not None:
                record.raised(delivery.number)
                raise delivery.error
            record.delivered(
                delivery.number, delivery.indices, delivery.decoders, delivery.skipped, replaced=delivery.replaced
            )
            if len(delivery.indices) > 0 or not delivery.skipped:
                self._cursor.fill()
                return delivery

    def _receive(self) -> Delivery:
        """The next delivery of the plan, from whichever engine has it."""
        while not self._finished:
            try:
                self._boundary()
                if not self._runs:
                    break
                run = self._runs[0]
                if run.stranded:
                    self._give_back()
                elif run.has_more():
                    newest = run is self._runs[-1]
                    if not newest:
                        self._runs[-1].take_another()
                    delivery = run.receive()
                    if delivery.error is None:
                        self._state.delivered(run.pooled.engine.name, self._record.number, delivery.number, newest)
                    return delivery
                elif run.closed or self._cursor.exhausted:
                    self._runs.popleft()
                    self._pool.reap()
                else:  # another iteration has the engine: a new run takes it back
                    run.closed = True
            except BaseException as error:  # noqa: BLE001 - raised again unless another engine can go on
                self._recover(error)
        if not self._finished:
            self._finished = True
            self._record.finish()
            self._keep_for_synthetic(None)
            if self._cursor.failure is not None:
                raise self._cursor.failure
        raise StopIteration

    def _boundary(self) -> None:
        """Between two batches: close the outgoing engine's run, start the incoming engine's."""
        state, pool = self._state, self._pool
        self._loader.preparation.at_boundary()
        self._loader.changes.at_boundary()
        pooled = pool[state.active]
        if self._runs and self._runs[-1].pooled is not pooled:
            self._runs[-1].closed = True
        if self._cursor.exhausted or (self._runs and not self._runs[-1].closed):
            return
        if any(run.pooled is pooled and run.in_flight for run in self._runs):
            return  # it still has batches of ours from before; it starts again once they are delivered
        run = EngineRun(pooled, self._cursor, lambda: pool[state.active] is pooled)
        draining = any(earlier.in_flight for earlier in self._runs)
        self._runs.append(run)
        pooled.start(run, gently=draining)
        pool.started(pooled)

    def _recover(self, error: BaseException) -> None:
        """After an engine's failure or an interrupt: give back what was under way, and let another engine go on.

        The failure of an engine other than the wrapped loader's own does not end the training: torchvision goes on.
        """
        broken = next((run.pooled for run in self._runs if run.pooled.engine.broken), None)
        self._give_back()
        try:
            if not isinstance(error, Exception) or broken is None:
                raise error
            if self._pool.roll_back(broken, error):
                return
            name = broken.engine.name
            if name == TORCHVISION and isinstance(error, NoWorkers):
                self._pool.without_workers(error)
                return
            if name == TORCHVISION:
                raise error
            self._state.fall_back(name, error, TORCHVISION)
            self._pool.refresh()
        finally:
            # The error's traceback refers to this frame: without a cycle the iterator goes when the loop drops it, and
            # not whenever a collection comes.
            del error

    def _give_back(self) -> None:
        """Return everything in flight to the plan, for the engine that is active then."""
        slots = []
        for run in self._runs:
            run.closed = True
            slots.extend(run.undelivered())
        self._runs.clear()
        self._cursor.give_back(slots)

    def _keep_for_synthetic(self, delivery: Delivery | None) -> None:
        """While a switch to `synthetic` is asked for, keep copies of batches until there are enough or the epoch ends.

        Where another engine has taken over, or the switch was cancelled, the kept batches are given back.
        """
        pooled, state = self._pool[SYNTHETIC], self._state
        engine = cast("SyntheticEngine", pooled.engine)
        click = state.preparing
        if click is not None and click.target == SYNTHETIC:
            try:
                with pooled.use():
                    if delivery is not None and not delivery.replaced:
                        engine.keep(delivery)
            except Exception as error:  # noqa: BLE001 - the user's own classes, or no memory: the training goes on
                pooled.release()
                state.failed(click, error)
                return
            if engine.kept == KEPT or (delivery is None and engine.kept):
                state.ready(click)
        elif engine.kept and pooled.idle and SYNTHETIC not in (state.active, state.backend):
            pooled.release()
