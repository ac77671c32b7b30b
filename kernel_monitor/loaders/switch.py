"""The state of a switch: asked for by any thread, made ready on a thread of its own, applied by the one that iterates.

settled ──ask──▶ preparing ──ready──▶ ready ──next boundary, first batch──▶ settled
                    │ failed, or a newer wish                 (the outgoing engine delivers all the while)
                    └────────────────▶ settled
"""

from __future__ import annotations

import _thread
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..paths import told
from .events import emit
from .segment import Slot

if TYPE_CHECKING:
    from .knobs import Knobs
    from .plan import EpochRecord

CLICKS_KEPT = 1000

log = logging.getLogger(__name__)


class Switch(NamedTuple):
    """One switch that took place.

    Attributes:
        epoch, batch: number of the first batch from the new engine, and of its epoch.
        source, target: names of the backends.
        asked: s (monotonic), when it was asked for.
        first: s (monotonic), when the first batch from the new engine was delivered.
    """

    epoch: int
    batch: int
    source: str
    target: str
    asked: float
    first: float


class Click(NamedTuple):
    """One request for another backend, and what became of it.

    Attributes:
        target, source: names of the backends asked for and in use then.
        asked: s (monotonic), when it was asked for.
        outcome: "pending"; "done", its first batch was delivered; "superseded" by a newer one; "cancelled", the loader
            was released or dropped first; "failed".
        ended: s (monotonic), when the outcome was known.
        epoch, batch: of its first batch, where it was done.
        message: the cause, where it failed.
    """

    target: str
    source: str
    asked: float
    outcome: str = "pending"
    ended: float | None = None
    epoch: int | None = None
    batch: int | None = None
    message: str | None = None


class Wish(NamedTuple):
    """A backend that somebody asked for, and when (s, monotonic)."""

    target: str
    asked: float


class Switchboard:
    """What is wanted, what takes from the plan, what delivers. Every method returns at once, from any thread.

    Args:
        loader: its id.
        backend: the one in use.
        files: paths of some of the data set's files, whose folders no message is to name.
    """

    def __init__(self, loader: str, backend: str, files: Callable[[], Sequence[str]] = tuple) -> None:
        self._loader = loader
        self._files = files
        self._lock = threading.Lock()
        self._taking = backend  # the engine that new batches are to be taken by
        self._backend = backend  # the engine of the batch delivered last
        self._preparing: Wish | None = None
        self._ready: Wish | None = None  # applied or to be applied; its first batch has not been delivered
        self._status = backend
        self._failed = False  # the status tells of a failure, which the fallback's first batch does not replace
        self._history: list[Switch] = []
        self._clicks: deque[Click] = deque(maxlen=CLICKS_KEPT)  # at most the last one is pending
        self._asked: dict[str, float] = {}  # backend → when it was asked for last, s (monotonic)
        self._batches = 0  # delivered so far
        self._record: EpochRecord | None = None  # of the iteration that began last
        self._when_ready = (0, 0)  # batches delivered and in flight when the engine of the last wish became ready

    @property
    def taking(self) -> str:
        """The backend that is to take from the next boundary on."""
        return self._taking

    @property
    def backend(self) -> str:
        """The backend in use: of the batch delivered last."""
        return self._backend

    @property
    def wanted(self) -> str | None:
        """The backend that was asked for and has not delivered yet."""
        wish = self._preparing or self._ready
        return None if wish is None else wish.target

    @property
    def status(self) -> str:
        """The sentence of the page's status region."""
        return self._status

    @property
    def history(self) -> list[Switch]:
        """All switches that took place, oldest first."""
        with self._lock:
            return list(self._history)

    @property
    def clicks(self) -> list[Click]:
        """The last requests, oldest first."""
        with self._lock:
            return list(self._clicks)

    @property
    def waiting(self) -> Wish | None:
        """The wish whose engine is not ready yet."""
        return self._preparing

    def ask(self, target: str) -> Wish | None:
        """Record a wish. Returns it if an engine must be prepared for it, else None."""
        with self._lock:
            older, source = self._preparing, self._taking
            if older is not None and older.target == target:
                return None
            if older is None and target == source:
                return None
            wish = Wish(target, time.monotonic())
            self._asked[target] = wish.asked
            superseded = self._end("superseded")
            self._clicks.append(Click(target, self._backend, wish.asked))
            self._preparing = None if target == source else wish
            self._failed = False
            if target != source:
                self._status = f"switching to {target}…"
            elif self._ready is not None:
                self._status = f"{target} ready, from the next batch"
            else:
                self._status = target
            prepare = self._preparing
        emit("switch-asked", self._loader, source=source, target=target)
        if superseded is not None:
            emit("switch-superseded", self._loader, target=superseded.target)
        return prepare

    def ready(self, wish: Wish) -> None:
        """The engine of a wish can take; a wish that was superseded meanwhile changes nothing."""
        with self._lock:
            if self._preparing is not wish:
                return
            self._preparing = None
            self._taking = wish.target
            self._when_ready = (self._batches, 0 if self._record is None else self._record.in_flight)
            if wish.target == self._backend:  # back before the other one delivered anything
                self._ready, self._status = None, wish.target
            else:
                self._ready, self._status = wish, f"{wish.target} ready, from the next batch"
        emit("engine-ready", self._loader, target=wish.target)

    def failed(self, wish: Wish, error: BaseException) -> None:
        """The engine of a wish cannot be built: the outgoing one goes on."""
        message = self._cause(error)
        with self._lock:
            if self._preparing is not wish:
                return
            self._preparing = None
            self._status = f"{wish.target} failed: {message}; {self._taking} goes on"
            self._end("failed", message=message)
        emit("switch-failed", self._loader, target=wish.target, message=message)

    def gave_up(self, target: str, error: BaseException, fallback: str) -> None:
        """The engine that takes cannot go on: `fallback` takes from now on."""
        message = self._cause(error)
        with self._lock:
            self._taking = fallback
            self._ready = None if fallback == self._backend else Wish(fallback, time.monotonic())
            self._status = f"{target} failed: {message}; {fallback} goes on"
            self._failed = self._ready is not None
            if self._pending is not None and self._pending.target == target:
                self._end("failed", message=message)
        emit("switch-failed", self._loader, target=target, message=message)

    def say(self, sentence: str) -> None:
        """Show a sentence beside the backend, until something happens to that."""
        with self._lock:
            self._status = f"{self._status}. {sentence}"

    def begun(self, record: EpochRecord) -> None:
        """An iteration begins."""
        self._record = record

    def cancel(self) -> None:
        """The loader is released or gone: what was asked for and has not taken effect is given up."""
        with self._lock:
            cancelled = self._end("cancelled")
            if cancelled is None:
                return
            self._preparing = self._ready = None
            self._taking = self._status = self._backend
        emit("switch-cancelled", self._loader, target=cancelled.target)

    def turned(self, knobs: Knobs, error: BaseException | None = None) -> None:
        """The knobs have new values; with an error: they have the old ones again, because of it."""
        message = None
        if error is not None:
            message = self._cause(error)
            self._status = f"the change of workers, prefetch or threads failed: {message}; all goes on as before"
        emit("knobs", self._loader, **knobs._asdict(), message=message)

    def delivered(self, name: str, epoch: int, batch: int, newest: bool = True) -> None:
        """A batch of engine `name` is handed to the loop.

        Args:
            name: of the backend.
            epoch, batch: numbers.
            newest: whether it is from the stretch that takes from the plan, not from one that only drains.
        """
        self._batches += 1
        pending = self._pending
        if name == self._backend and pending is None:
            return
        now = time.monotonic()
        if pending is not None and newest and name == pending.target == self._taking:
            with self._lock:
                if self._pending is pending:
                    self._end("done", epoch=epoch, batch=batch)
        if name == self._backend:
            return
        with self._lock:
            switch = Switch(epoch, batch, self._backend, name, self._asked.get(name, now), now)
            self._history.append(switch)
            self._backend = name
            if name == self._taking:
                self._ready = None
                settled = f"{name} since batch {batch}"
            else:  # it was asked to stop again before its first batch was handed over
                self._ready = Wish(self._taking, self._asked.get(self._taking, now))
                settled = f"{self._taking} ready, from the next batch"
            if self._preparing is None and not self._failed:
                self._status = settled
            self._failed = self._failed and name != self._taking
        batches, in_flight = self._when_ready
        emit("switch", self._loader, **switch._asdict(), waited=self._batches - batches, in_flight=in_flight)

    @property
    def _pending(self) -> Click | None:
        last = self._clicks[-1] if self._clicks else None
        return last if last is not None and last.outcome == "pending" else None

    def _end(self, outcome: str, **more: Any) -> Click | None:
        """Enter the outcome of the click that is pending; returns it, None where there is none."""
        pending = self._pending
        if pending is None:
            return None
        ended = self._clicks[-1] = pending._replace(outcome=outcome, ended=time.monotonic(), **more)
        return ended

    def _cause(self, error: BaseException) -> str:
        """The first line of what an error says, as it may be recorded: without folders."""
        lines = told(error, *self._files()).splitlines()
        return lines[0] if lines else type(error).__name__


def prepare(board: Switchboard, wish: Wish, find: Callable[[], Slot]) -> None:
    """Build the engine of a wish, which `find` finds, and say so to the board."""
    try:
        slot = None
        while slot is not find():  # a knob that was turned meanwhile has replaced the engine
            slot = find()
            engine = slot.engine
            with slot.use():
                engine.prepare()
    except Exception as error:
        log.warning("%s cannot be used", wish.target, exc_info=True)
        board.failed(wish, error)
        return
    board.ready(wish)


def prepare_in_background(board: Switchboard, wish: Wish, find: Callable[[], Slot]) -> None:
    """Start `prepare` on a thread of its own and return at once."""
    thread = threading.Thread(target=prepare, args=(board, wish, find), name=f"prepare {wish.target}", daemon=True)
    # Thread.start() waits for the thread to run, and then for the GIL that it holds: 5 ms and more. So a bare
    # thread, for which nobody waits, does the starting.
    _thread.start_new_thread(thread.start, ())
