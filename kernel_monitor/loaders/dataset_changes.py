"""Lets every engine see the data set as plain torch's workers would see it.

That is: as it is when an epoch begins; as it was at first, where workers are kept from epoch to epoch; and where there
are no workers, as it is at each moment.
"""

from __future__ import annotations

from typing import Any

from ..errors import MonitorError
from .data.file_source import same
from .data.fingerprint import Held, contents, same_contents
from .engines.engine import Engine
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import WorkersEngine
from .switching.engine_pool import EnginePool, PooledEngine
from .switching.switch import SwitchState

_CHANGED = "the data set was changed after its workers had started, in a part that only they have as it was ({})"
_REMEDY = {True: "make the DataLoader anew, or do not keep its workers", False: "switch again in the next epoch"}


class DatasetChanges:
    """Follows the changes of one loader's data set."""

    def __init__(self, pool: EnginePool, state: SwitchState) -> None:
        self.shown = False  # whether workers that are kept have been given the data set
        self._wrapped = pool.setting.wrapped
        self._source = pool.setting.keyed.source
        self._pool = pool
        self._state = state
        self._copy: Held | None = None  # of the data set, where there are workers
        self._seen: list[Any] = []  # of the data set, between two batches
        self._held: list[Any] = []  # what it held then

    def check_between_batches(self) -> None:
        """Between two batches: where torch would see a change of the data set at once, let other engines see it."""
        if self._state.active == TORCHVISION:
            return
        engine = self._pool[TORCHVISION].engine
        if isinstance(engine, WorkersEngine):
            if engine.started and self._state.backend == TORCHVISION:  # their last batch is not delivered yet
                self._leave_to_workers()
            return
        seen = self._source.glance()
        changed = not same(seen, self._seen)
        if changed:
            self._seen = seen
            self._source.renew()
            self._translate()
        held = contents([self._source.dataset], self._source.dataset)
        if changed or not same_contents(held, self._held):
            self._held = held
            self._pool.data_changed()

    def at_epoch(self) -> None:
        """At the start of an epoch: show the engines the data set as it is now, where torch's workers would see it."""
        self._pool.try_workers()
        pooled = self._pool[TORCHVISION]
        engine = pooled.engine
        if not isinstance(engine, WorkersEngine):
            self._source.show(self._wrapped.dataset)
            self.shown = False
        elif not (self._wrapped.persistent_workers and self.shown):
            self._show(pooled, engine, Held(self._wrapped.dataset))
        elif engine.started:
            self._leave_to_workers()
        self._translate()

    def hold(self, held: Held | None) -> bool:
        """Show the engines the data set as workers of torch's own iterator hold it; return whether they can serve it.

        None: there are no such workers.
        """
        if held is None:
            return True
        if held is not self._copy:
            pooled = self._pool[TORCHVISION]
            self._show(pooled, pooled.engine, held)
            self._translate()
        return not self._leave_to_workers()

    def _leave_to_workers(self) -> bool:
        """Return whether the workers alone have the data set as it was; `torchvision` then goes on."""
        if self._copy is None or not self._copy.changed():
            return False
        active = self._state.active
        if active != TORCHVISION:
            error = MonitorError(_CHANGED.format(_REMEDY[self._wrapped.persistent_workers]))
            self._state.fall_back(active, error, TORCHVISION)
        return True

    def _show(self, pooled: PooledEngine, engine: Engine, held: Held) -> None:
        """Show a new state of the data set, and give back workers that have another one."""
        self._copy, self.shown = held, True
        outdated = False
        if isinstance(engine, WorkersEngine):
            with pooled.use():
                outdated = engine.outdated(held.dataset, shared=pooled.run is not None)
            if engine.started and not outdated:
                return
        self._source.show(held.dataset)
        if outdated:
            pooled.release()

    def _translate(self) -> None:
        self._pool.refresh()
        active = self._state.active
        backend = self._pool.backends[active]
        if not backend.available:
            self._state.fall_back(active, MonitorError(backend.reason or ""), TORCHVISION)
