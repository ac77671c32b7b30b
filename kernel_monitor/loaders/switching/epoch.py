"""One iteration of a loader: a cursor over one epoch's plan, and the engines that deliver it."""

from __future__ import annotations

import copy
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from ...errors import Refused
from ...steps.step_meter import Meter, StepClock
from ..data.keyed_dataset import is_fault
from ..dataset_changes import DatasetChanges
from ..engines import process_end, worker_start
from ..engines.engine import Delivery
from ..engines.fork_server import NoWorkers
from ..engines.synthetic import KEPT, SyntheticEngine
from ..engines.synthetic import NAME as SYNTHETIC
from ..engines.torch_engine import NAME as TORCHVISION
from ..plan import Cursor, EpochRecord, is_plain
from .engine_pool import EnginePool, EngineRun
from .preparation import Preparation
from .switch import SwitchState

# ---- The outermost guard of a loop: what fails in this package ends no iteration that plain torch would go on with.

_DEAD_WORKER = str(Path("_utils", "signal_handling.py"))


def is_ours(error: Exception) -> bool:
    """Return whether an exception is a fault of this package, which plain torch would not raise."""
    if isinstance(error, Refused | StopIteration) or is_plain(error):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    # torch's handler of SIGCHLD raises for a dead worker, wherever the loop is by then.
    return last is None or not last.tb_frame.f_code.co_filename.endswith(_DEAD_WORKER)


class Guard:
    """The guard of one loader."""

    def __init__(self, wrapped: DataLoader[Any], state: SwitchState) -> None:
        self._wrapped = wrapped
        self._state = state

    def unharmed(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call what only keeps records; where it fails, that is shown, and the loop goes on."""
        try:
            return function(*args, **named)
        except Exception as error:  # noqa: BLE001 - see above
            self.note(error, "the training goes on")
            return None

    def compute(self, dataset: Any, keys: Any) -> Any:
        """One batch as the wrapped DataLoader computes it without workers."""
        return next(self._plain_loader([keys], dataset, alone=True))

    def note(self, error: Exception, consequence: str) -> None:
        """Show a fault, after which something did not take place."""
        log.error("a fault in kernel_monitor; %s", consequence, exc_info=error)
        self._state.fault(error, consequence)

    def plainly(
        self, error: Exception, batches: Iterable[Any], *, dataset: Any = None, draws: bool = False
    ) -> Iterator[Any]:
        """After a fault: an iterator as the wrapped DataLoader has it.

        Args:
            error: the fault, which is logged and shown.
            batches: what to deliver, lists of keys.
            dataset: to read; the wrapped loader's where None is given.
            draws: whether the DataLoader draws the seed of its workers; else the training's generators are left alone.
        """
        self.note(error, "the wrapped DataLoader goes on until the epoch ends")
        alone = worker_start.dali_runs() and worker_start.forks(self._wrapped)
        return self._plain_loader(batches, dataset, alone=alone, draws=draws)

    def _plain_loader(self, batches: Iterable[Any], dataset: Any, *, alone: bool, draws: bool = False) -> Iterator[Any]:
        plain: Any = copy.copy(self._wrapped)
        settings = vars(plain)  # the class refuses to have some of them assigned
        settings.pop("_iterator", None)
        settings["batch_sampler"] = batches
        if dataset is not None:
            settings["dataset"] = dataset
        if not draws:
            settings["generator"] = torch.Generator().manual_seed(torch.initial_seed())
        if alone:
            settings |= {"num_workers": 0, "prefetch_factor": None, "timeout": 0, "persistent_workers": False}
        return iter(plain)


log = logging.getLogger(__name__)


class _EpochLoader(Protocol):
    """The parts of a `SwitchableLoader` that an iteration uses."""

    turn: threading.RLock
    guard: Guard
    meter: Meter
    pool: EnginePool
    switch_state: SwitchState
    preparation: Preparation
    changes: DatasetChanges

    def __len__(self) -> int: ...

    def forget_unused(self, record: EpochRecord) -> None: ...


class EpochIterator:
    """The iterator of a loader. Its batches are the plan's, in order, once each, whichever engine computes them."""

    def __init__(self, loader: _EpochLoader, cursor: Cursor, lead: float = 0.0) -> None:
        self._loader = loader  # keeps the engines alive during the iteration
        self._state = loader.switch_state
        self._pool = loader.pool
        self._cursor = cursor
        self._record = cursor.record
        self._runs: deque[EngineRun] = deque()  # those before the last one only drain
        self._clock = StepClock(loader.meter)
        self._lead = lead  # s that was waited before, or that `begin` took: counts as waiting for the first batch
        self._finished = False
        self._plain: Iterator[Any] | None = None  # after a fault: what goes on in place of the engines
        self._handed = 0  # number of the next batch for the loop

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """An iterator that never delivered costs neither an epoch nor a draw: some frameworks make one for a look."""
        if not ends():
            self._loader.forget_unused(self._record)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader) - self._record.passed

    @property
    def seed(self) -> int:
        """The seed of the epoch's augmentation."""
        return self._cursor.seed

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
        try:
            process_end.stay()
        except Exception:  # here nothing has been asked for yet
            log.exception("a fault in kernel_monitor; the training goes on")
        asked = time.monotonic()
        with self._loader.turn:
            try:
                if self._plain is not None:
                    return self._next_plain(asked)
                delivery = self._next_delivery(asked)
                self._answered(delivery)
            except StopIteration:
                raise
            except Exception as error:
                if not is_ours(error):
                    self._loader.guard.unharmed(self._clock.stop)
                    raise
                self.go_on_plainly(error)
                return self._next_plain(asked)
            except BaseException:  # an interrupt, too, ends the step
                self._loader.guard.unharmed(self._clock.stop)
                raise
            if delivery.error is not None:
                self._loader.guard.unharmed(self._clock.stop)
                raise delivery.error
            return delivery.batch

    def _next_delivery(self, asked: float) -> Delivery:
        """The next batch for the loop, or the exception that answers it.

        Batches of which every sample was skipped are recorded and passed over.
        """
        unharmed = self._loader.guard.unharmed
        unharmed(self._clock.ask, asked - self._lead)
        self._lead = 0.0
        while True:
            self._cursor.ask()
            delivery = self._receive()
            if delivery.error is not None and is_fault(delivery.error):
                delivery = self._computed_plainly(delivery, delivery.error)
            unharmed(self._enter, delivery)
            if delivery.error is not None:
                return delivery
            if len(delivery.indices) > 0 or not delivery.skipped:
                unharmed(self._keep_for_synthetic, delivery)
                unharmed(self._clock.got, len(delivery.indices), epoch=self._record.number, batch=delivery.number)
                return delivery
            self._answered(delivery)

    def _answered(self, delivery: Delivery) -> None:
        self._cursor.undelivered.answered(delivery.number)
        self._handed = delivery.number + 1

    def _computed_plainly(self, delivery: Delivery, error: BaseException) -> Delivery:
        """A batch that an engine did not compute because of a fault in this package, as the DataLoader computes it."""
        log.error("a fault in kernel_monitor; the data set alone computes the batch", exc_info=error)
        self._state.fault(error, "the data set alone has computed that batch")
        keys = self._cursor.undelivered.keys(delivery.number)
        try:
            batch = self._loader.guard.compute(self._pool.setting.keyed.source.dataset, keys)
        except Exception as theirs:  # noqa: BLE001 - raised in the loop, as from the DataLoader
            return replace(delivery, error=theirs)
        return replace(delivery, batch=batch, error=None, decoders=[TORCHVISION] * len(delivery.indices))

    def _enter(self, delivery: Delivery) -> None:
        """Record a delivery."""
        record = self._record
        record.add_fallbacks(delivery.fallbacks)
        if delivery.error is not None:
            record.raised(delivery.number)
            return
        record.delivered(
            delivery.number, delivery.indices, delivery.decoders, delivery.skipped, replaced=delivery.replaced
        )
        if len(delivery.indices) > 0 or not delivery.skipped:
            self._cursor.fill()

    def go_on_plainly(self, error: Exception) -> None:
        """After a fault of this package: what the loop has not got yet comes from the wrapped DataLoader."""
        dataset = self._pool.setting.keyed.source.dataset
        self._plain = self._loader.guard.plainly(error, self._rest(), dataset=dataset)
        self._loader.guard.unharmed(self._drop_runs)

    def _rest(self) -> Iterator[Any]:
        for number, keys in self._cursor.undelivered.rest():
            self._loader.guard.unharmed(self._cursor.record_batch, number, keys)
            yield keys

    def _drop_runs(self) -> None:
        for run in self._runs:
            run.closed = True
            run.undelivered()
        self._runs.clear()

    def _next_plain(self, asked: float) -> Any:
        """The next batch from the wrapped DataLoader; recorded as far as the plan knows it."""
        unharmed = self._loader.guard.unharmed
        unharmed(self._clock.ask, asked)
        try:
            batch = next(self._plain)  # type: ignore[arg-type]
        except BaseException as ended:
            unharmed(self._clock.stop)
            if isinstance(ended, StopIteration):
                unharmed(self._record.finish)
            raise
        number, self._handed = self._handed, self._handed + 1
        unharmed(self._enter_plain, number)
        return batch

    def _enter_plain(self, number: int) -> None:
        indices = np.frombuffer(self._record.batch(number), dtype=np.int64)
        self._record.delivered(number, indices, [TORCHVISION] * len(indices))
        self._state.delivered(TORCHVISION, self._record.number, number)
        self._clock.got(len(indices), epoch=self._record.number, batch=number)

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
        self._loader.guard.unharmed(self._clock.stop)
        raise StopIteration

    def _boundary(self) -> None:
        """Between two batches: close the outgoing engine's run, start the incoming engine's."""
        state, pool = self._state, self._pool
        self._loader.preparation.prepare_deferred()
        self._loader.changes.check_between_batches()
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
