"""Lets every engine see the data set as plain torch's workers would see it.

That is: as it is when an epoch begins; as it was at first, where workers are kept from epoch to epoch; and where there
are no workers, as it is at each moment.
"""

from __future__ import annotations

from typing import Any

from ..errors import MonitorError
from .data.file_source import same
from .data.fingerprint import snapshot
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import WorkersEngine
from .switching.engine_pool import EnginePool, PooledEngine
from .switching.switch import SwitchState


class DatasetChanges:
    """Follows the changes of one loader's data set."""

    def __init__(self, pool: EnginePool, state: SwitchState) -> None:
        self.shown = False  # whether workers that are kept have been given the data set
        self._wrapped = pool.setting.wrapped
        self._source = pool.setting.keyed.source
        self._pool = pool
        self._state = state
        self._seen: list[Any] = []  # of the data set, between two batches
        self._held: list[Any] = []  # the values of its attributes then

    def check_between_batches(self) -> None:
        """Between two batches: where torch would see a change of the data set at once, let other engines see it."""
        if self._state.active == TORCHVISION or isinstance(self._pool[TORCHVISION].engine, WorkersEngine):
            return
        seen = self._source.glance()
        changed = not same(seen, self._seen)
        if changed:
            self._seen = seen
            self._source.renew()
            self._translate()
        held = self._source.held()
        if changed or not same(held, self._held):
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
            self._show(pooled, engine, snapshot(self._wrapped.dataset))
            self.shown = True
        self._translate()

    def _show(self, pooled: PooledEngine, engine: WorkersEngine, dataset: Any) -> None:
        """Show a new state of the data set, and give back workers that have another one."""
        with pooled.use():
            outdated = engine.outdated(dataset, shared=pooled.run is not None)
        if engine.started and not outdated:
            return
        self._source.show(dataset)
        if outdated:
            pooled.release()

    def _translate(self) -> None:
        self._pool.refresh()
        active = self._state.active
        backend = self._pool.backends[active]
        if not backend.available:
            self._state.fall_back(active, MonitorError(backend.reason or ""), TORCHVISION)
