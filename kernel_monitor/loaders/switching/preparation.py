"""Gets the engine of a requested switch ready: at once, in the background, or once DALI may start its threads."""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...text import log_outside
from ..engines import worker_start
from ..engines.backends import RAY
from ..engines.fork_server import NoWorkers
from ..engines.synthetic import NAME as SYNTHETIC
from ..engines.torch_engine import NAME as TORCHVISION
from ..engines.torch_engine import WorkersEngine
from .engine_pool import EnginePool, PooledEngine
from .switch import Click, SwitchState

log = logging.getLogger(__name__)


class Preparation:
    """The preparation of one loader's engines.

    What is to be forked from this process must be before DALI's threads exist: the workers, and the fork server, from
    which later workers come. Only the thread of the training loop forks. So a switch to DALI that is asked for before
    the first iteration is deferred until that has forked the workers; and one that another thread asks for, while
    there is no fork server, until the loop's next batch boundary, or its next epoch.
    """

    def __init__(self, pool: EnginePool, state: SwitchState) -> None:
        self.deferred: Click | None = None
        self._pool = pool
        self._state = state
        self._lock = threading.Lock()  # of `deferred` and `_workers_forked`
        self._workers_forked = False

    def request(self, target: str) -> None:
        """Ask for a switch to an engine that can run; returns at once, on any thread."""
        first = self._pool[TORCHVISION].engine
        older = self._state.preparing
        click = self._state.request(target)
        if older is not None and older is not self._state.preparing and older.target == RAY:
            self._pool[RAY].abandon()
        if click is None:
            return
        if target == TORCHVISION and (not isinstance(first, WorkersEngine) or first.forks or first.started):
            self._state.ready(click)  # there is nothing to build in the background
        elif target != SYNTHETIC:  # for which the iteration keeps batches until it has enough
            with self._lock:
                if not self._workers_forked and isinstance(first, WorkersEngine) and first.forks:
                    self.deferred = click
                    return
                if not self._may_start(target) and threading.current_thread() is not threading.main_thread():
                    self.deferred = click
                    return
            with self._deferred_again(click):
                if not self._may_start(target):
                    worker_start.before_dali()
                self._prepare_in_background(click)

    def prepare_deferred(self) -> None:
        """Prepare the deferred engine. On the loop's thread, between two batches: the fork server may be made now."""
        if self.deferred is None:
            return
        with self._lock:
            click = self._take_deferred()
        if click is not None:
            with self._deferred_again(click):
                worker_start.before_dali()
                self._prepare_in_background(click)

    @staticmethod
    def _may_start(target: str) -> bool:
        return target in (TORCHVISION, SYNTHETIC, RAY) or worker_start.ready_for_dali()

    def before_epoch(self) -> None:
        """On the loop's thread, before an epoch's engine starts: fork workers, then prepare the deferred engine."""
        if isinstance(self._pool[TORCHVISION].engine, WorkersEngine):
            self.start_workers()
        click = self._take_deferred()
        if click is not None:
            with self._deferred_again(click):
                self.start_workers()  # the request may have come after the first time
                if click.target == RAY:  # where it waits for others' cores, the engine in use goes on
                    self._prepare_in_background(click).wait()
                    return
                if not self._may_start(click.target):
                    worker_start.before_dali()
                self._prepare(click)

    def without_workers(self) -> None:
        """Do not fork workers of `torchvision` before a switch: torch's own iterator forks its workers itself."""
        with self._lock:
            self._workers_forked = True

    def epoch_started(self) -> None:
        """The workers have been forked: only the fork server may still be missing."""
        with self._lock:
            self._workers_forked = True
        self.prepare_deferred()

    def start_workers(self) -> None:
        """Fork the workers of `torchvision` if another engine is about to start threads."""
        pooled, state = self._pool[TORCHVISION], self._state
        try:
            with pooled.use():
                engine = pooled.engine
                if not isinstance(engine, WorkersEngine):
                    return
                if engine.started or worker_start.dali_runs():
                    return  # those that are not forked from this process start when they are wanted
                if state.active != TORCHVISION or state.preparing is not None:
                    engine.ensure()
        except Exception as error:  # of an engine with new knobs: the engine before goes on, if there is one
            if self._pool.roll_back(pooled, error):
                return
            if not isinstance(error, NoWorkers):
                raise
            self._pool.without_workers(error)

    def _take_deferred(self) -> Click | None:
        click, self.deferred = self.deferred, None
        return click if click is self._state.preparing else None

    @contextmanager
    def _deferred_again(self, click: Click) -> Iterator[None]:
        """Defer a click once more if an interrupt ends its preparation, which nothing else would resume."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                self._state.failed(click, error)
            else:
                with self._lock:
                    self.deferred = click
            raise

    def _prepare(self, click: Click, settled: Callable[[], None] = lambda: None) -> None:
        """Prepare an engine. `settled` is called once it is ready, has failed, or waits for long."""

        def tell(sentence: str) -> None:
            self._state.waits(click, sentence)
            settled()

        pooled = None
        try:
            while click is self._state.preparing and pooled is not self._pool[click.target]:
                pooled = self._pool[click.target]  # a knob turned meanwhile has replaced the engine
                self._prepare_one(click, pooled, tell)
            self._state.ready(click)
        except Exception as error:  # noqa: BLE001 - whatever the engine's packages raise: the outgoing engine goes on
            if click is self._state.preparing:
                log_outside(log, "%s cannot be used; the engine in use goes on", click.target)
                self._state.failed(click, error)
        finally:
            settled()

    def _prepare_one(self, click: Click, pooled: PooledEngine, tell: Callable[[str], None]) -> None:
        try:
            pooled.prepare(tell)
        except Exception:
            if pooled is self._pool[click.target]:  # else it was released meanwhile, for the one in its place
                raise

    def _prepare_in_background(self, click: Click) -> threading.Event:
        settled = threading.Event()
        thread = threading.Thread(
            target=self._prepare, args=(click, settled.set), name=f"prepare {click.target}", daemon=True
        )
        # Thread.start() waits until the thread runs, and then for the GIL that it holds: 5 ms and more. A bare thread,
        # for which nothing waits, does the starting.
        _thread.start_new_thread(thread.start, ())
        return settled
