"""One engine of the pool, with the thread that may call it, and the run of batches that it works for."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ...errors import Refused
from ..engines.engine import Delivery, Engine
from ..engines.setting import Setting
from ..plan import Cursor, Slot

log = logging.getLogger(__name__)


class PooledEngine:
    """An engine and the run that it works for, one at a time.

    Another iteration of the same loader takes the engine over by first letting the batches of the run arrive, which are
    kept for that run: no work is thrown away, and nothing is lost or doubled.
    """

    def __init__(self, engine: Engine, setting: Setting) -> None:
        self.engine = engine
        self.setting = setting  # what the engine was built for
        self.proven = False  # whether it has started for an iteration
        self.previous: PooledEngine | None = None  # the engine that it replaces, kept until this one has started
        self._run: weakref.ref[EngineRun] | None = None
        self._lock = threading.RLock()
        self._ownership = threading.Condition(self._lock)  # notify() raises in a thread without the lock
        self._process = os.getpid()

    def use(self) -> threading.RLock:
        """Check that this thread may call the engine; the returned lock, in a `with`, keeps other threads out.

        A bare lock: an interrupt between two instructions of a context manager written in Python would leave the
        engine locked.

        Raises:
            MonitorError: this thread is inside already (user code called by the engine came back to it), or the
                engine belongs to the process from which this one was forked.
        """
        if os.getpid() != self._process:
            raise Refused("this loader belongs to the parent process; wrap a DataLoader of this process's own")
        try:
            self._ownership.notify()
        except RuntimeError:
            return self._lock
        raise Refused("the loader is asked for a batch from within its own data set, sampler or collate")

    @property
    def run(self) -> EngineRun | None:
        """The living run that the engine works for."""
        return None if self._run is None else self._run()

    @property
    def idle(self) -> bool:
        """Whether no run waits for batches of the engine."""
        run = self.run
        return run is None or (run.closed and not run.in_flight)

    def prepare(self) -> None:
        with self.use():
            self.engine.prepare()

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the engine; if it raises, the engine is broken."""
        with self.use():
            return self.call_inside(method, *args)

    def call_inside(self, method: Callable[..., Any], *args: Any) -> Any:
        """As `call`, by a thread that has the lock."""
        try:
            return method(*args)
        except BaseException:  # an interrupt, too, leaves the engine in an unknown state
            self.engine.broken = True
            raise

    def start(self, run: EngineRun, *, gently: bool = False) -> None:
        """Make the engine work for `run`; `gently`: with one batch at first, see `EngineRun.take_another`."""
        with self.use():
            holder = self.run
            if holder is not None and holder is not run:
                holder.closed = True
                holder.collect()
            self._run = reference = weakref.ref(run)  # weak: the engine must not keep a dropped iteration alive

            def pull() -> Slot | None:
                alive = reference()
                return None if alive is None else alive.pull()

            self.call_inside(self.engine.start, pull)
            self.call_inside(self.engine.pump, 1 if gently else None)

    def revoke(self) -> None:
        """Let what is under way be computed again, by the engine as it then is."""
        with self.use():
            run = self.run
            if run is not None:
                run.closed = run.revoked = True
            self._run = None

    def release(self) -> None:
        """Give back what the engine has; the batches under way are taken again."""
        if os.getpid() != self._process:
            return
        with self.use():
            run = self.run
            if run is not None:
                run.closed = run.revoked = True
            self._run = None
            self.engine.release()


class EngineRun:
    """The part of one epoch that one engine delivers: takes from the cursor until it is closed, then drains."""

    def __init__(self, pooled: PooledEngine, cursor: Cursor, is_active: Callable[[], bool]) -> None:
        self.pooled = pooled
        self.closed = False  # whether it takes no more
        self.revoked = False  # whether the engine was taken away before it had computed all of `in_flight`
        self.in_flight: deque[Slot] = deque()  # taken and not delivered, oldest first
        self._computed: deque[Delivery] = deque()  # kept while another iteration has the engine
        self._cursor = cursor
        self._is_active = is_active  # whether the engine is still the one that is to take batches

    def pull(self) -> Slot | None:
        """What the engine takes next; None where there is nothing for it."""
        # Asked here as well as at boundaries: an engine that waits for a batch while another becomes ready takes no
        # more, so the loop waits for nothing but what was in flight then.
        if self.closed or not self._is_active():
            self.closed = True
            return None
        slot = self._cursor.take()
        if slot is not None:
            self.in_flight.append(slot)
        return slot

    @property
    def stranded(self) -> bool:
        """Whether its batches will never arrive."""
        return self.revoked and bool(self.in_flight) and not self._computed

    @property
    def _has_engine(self) -> bool:
        return not self.closed and self.pooled.run is self

    def has_more(self) -> bool:
        """Whether this run still has a batch to deliver; lets the engine take if nothing is in flight."""
        if not self.in_flight and self._has_engine:
            self.pooled.call(self.pooled.engine.pump)
        return bool(self.in_flight)

    def take_another(self) -> None:
        """Let the incoming engine take one batch more, while the outgoing engine's batches are still being delivered.

        If it took all at once, the loop would wait: for the taking, and for the outgoing engine's last batches, which
        would get less of the processor.
        """
        if self._has_engine and not self.pooled.engine.broken:
            self.pooled.call(self.pooled.engine.pump, 1)

    def receive(self) -> Delivery:
        """Wait for the oldest batch of the run; if the engine fails, `in_flight` is to be given back to the cursor."""
        if self._computed:
            self.in_flight.popleft()
            return self._computed.popleft()
        delivery: Delivery = self.pooled.call(self.pooled.engine.receive)
        self.in_flight.popleft()
        return delivery

    def collect(self) -> None:
        """Let everything in flight arrive and keep it, as another run wants the engine; called with the lock held."""
        engine = self.pooled.engine
        try:
            while len(self._computed) < len(self.in_flight) and not engine.broken:
                self._computed.append(self.pooled.call_inside(engine.receive))
        except Exception:  # the engine's, not of the iteration that wants it: it starts anew, as it is broken
            # This run's own iteration finds its batches missing, gives them back and takes them again.
            log.exception("%s failed while it was handed to another iteration; starting it anew", engine.name)
        finally:  # after an interrupt too
            self.revoked = self.revoked or len(self._computed) < len(self.in_flight)

    def undelivered(self) -> list[Slot]:
        """What was taken and not delivered; forgets it."""
        slots = list(self.in_flight)
        self.in_flight.clear()
        self._computed.clear()
        return slots
