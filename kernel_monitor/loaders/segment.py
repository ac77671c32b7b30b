"""Who uses an engine, and a stretch of one epoch that one engine delivers.

An engine belongs to one segment at a time. Another live iteration of the same loader takes it over by first letting
the holder's batches arrive, which are kept for the holder: no work is thrown away, and nothing is lost or doubled.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from ..errors import MonitorError
from .engines.base import Delivery, Engine
from .plan import Cursor, Take

log = logging.getLogger(__name__)


class Slot:
    """An engine with its holder, and who may enter it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._holder: weakref.ref[Segment] | None = None
        self._inside = threading.RLock()  # re-entrant only because such a one can tell whose it is
        self._process = os.getpid()

    def use(self) -> threading.RLock:
        """Check that this thread may enter the engine; what is returned, in a `with`, keeps the others out.

        A lock and nothing around it, because an interrupt may come at any moment: between two instructions of a
        context manager written in Python, too, which would then leave the engine occupied.

        Raises:
            MonitorError: this thread is inside already (user code called by the engine came back to it), or the
                engine belongs to the process from which this one was forked.
        """
        if os.getpid() != self._process:
            raise MonitorError("this loader belongs to the parent process; wrap a DataLoader of this process's own")
        if self._mine:
            raise MonitorError("the loader is asked for a batch from within its own data set, sampler or collate")
        return self._inside

    @property
    def _mine(self) -> bool:
        """Whether this thread is inside the engine."""
        return bool(self._inside._is_owned())  # type: ignore[attr-defined]

    @property
    def holder(self) -> Segment | None:
        """The living segment that the engine works for."""
        return None if self._holder is None else self._holder()

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything from the engine."""
        # Asked, not tried: an interrupt after acquire() would leave it locked. (RLock.locked() is of Python 3.14.)
        occupied = repr(self._inside).startswith("<locked")
        holder = self.holder
        return not occupied and (holder is None or (holder.closed and not holder.in_flight))

    def start(self, segment: Segment, *, gently: bool = False) -> None:
        """Make the engine work for `segment` from now on; `gently`: with one batch at first, see `Segment.nudge`."""
        engine = self.engine
        with self.use():
            holder = self.holder
            if holder is not None and holder is not segment:
                holder.close()
                holder.hand_over(engine)
            self._holder = weakref.ref(segment)
            taker = self._holder  # weak: an iteration that was dropped must not be kept alive by its engine

            def pull() -> Take | None:
                alive = taker()
                return None if alive is None else alive.pull()

            try:
                engine.start(pull)
                engine.pump(1 if gently else None)
            except BaseException:
                engine.broken = True
                raise

    def release(self) -> None:
        """Give back what the engine has; a living holder's batches will be taken again."""
        if os.getpid() != self._process:
            return
        engine = self.engine
        with self.use():
            holder = self.holder
            if holder is not None:
                holder.revoked = True
                holder.close()
            self._holder = None
            engine.release()


class Segment:
    """A stretch of one epoch from one engine: takes from the cursor until it is closed, then drains."""

    def __init__(self, slot: Slot, cursor: Cursor, wanted: Callable[[], bool]) -> None:
        self.slot = slot
        self.closed = False
        self.revoked = False  # the engine was released under it
        self.in_flight: deque[Take] = deque()
        self._arrived: deque[Delivery] = deque()  # computed, kept while another iteration has the engine
        self._cursor = cursor
        self._wanted = wanted

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.slot.engine.name

    def close(self) -> None:
        """Take no more from the plan."""
        self.closed = True

    def pull(self) -> Take | None:
        """What the engine takes next."""
        # Asked here as well as at boundaries: an engine that waits for a batch while another becomes ready takes no
        # more, so the loop waits for nothing but what was in flight then.
        if self.closed or not self._wanted():
            self.closed = True
            return None
        take = self._cursor.take()
        if take is not None:
            self.in_flight.append(take)
        return take

    @property
    def stranded(self) -> bool:
        """Whether its batches will never arrive: the engine was taken away before it computed them."""
        return self.revoked and bool(self.in_flight) and not self._arrived

    @property
    def more(self) -> bool:
        """Whether this segment still has a batch to deliver."""
        if not self.in_flight and not self.closed and self.slot.holder is self:
            engine = self.slot.engine
            with self.slot.use():
                try:
                    engine.pump()
                except BaseException:
                    engine.broken = True
                    raise
        return bool(self.in_flight)

    def nudge(self) -> None:
        """Let the engine take one batch more, while another engine's batches are still being delivered.

        An incoming engine that took all at once would make the loop wait: for the taking, and for the outgoing
        engine's last batches, which it would take the processor from.
        """
        if self.closed or self.slot.holder is not self:
            return
        engine = self.slot.engine
        with self.slot.use():
            if not engine.broken:
                try:
                    engine.pump(1)
                except BaseException:
                    engine.broken = True
                    raise

    def receive(self) -> Delivery:
        """Wait for the oldest batch of the segment.

        Raises:
            Exception: the engine failed; `in_flight` is then to be given back to the cursor.
        """
        if self._arrived:
            self.in_flight.popleft()
            return self._arrived.popleft()
        engine = self.slot.engine
        with self.slot.use():
            delivery = self._receive(engine)
        self.in_flight.popleft()
        return delivery

    def hand_over(self, engine: Engine) -> None:
        """Let everything in flight arrive, for another segment wants the engine."""
        try:
            while len(self._arrived) < len(self.in_flight) and not engine.broken:
                self._arrived.append(self._receive(engine))
        except Exception:
            # It failed while it worked for this segment, whose iteration finds its batches missing, gives them back
            # and takes them again; the engine, marked broken, starts anew for the other.
            log.exception("%s failed while it was handed to another iteration; starting it anew", engine.name)
        finally:  # after an interrupt too
            self.revoked = self.revoked or len(self._arrived) < len(self.in_flight)

    def undelivered(self) -> list[Take]:
        """What was taken and has not arrived; forgets it."""
        takes = list(self.in_flight)
        self.in_flight.clear()
        self._arrived.clear()
        return takes

    def _receive(self, engine: Engine) -> Delivery:
        try:
            return engine.receive()
        except BaseException:
            engine.broken = True
            raise
