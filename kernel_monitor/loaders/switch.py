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
from typing import TYPE_CHECKING, NamedTuple

from .events import emit
from .segment import Slot

if TYPE_CHECKING:
    from .plan import EpochRecord

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


class Wish(NamedTuple):
    """A backend that somebody asked for, and when (s, monotonic)."""

    target: str
    asked: float


class Switchboard:
    """What is wanted, what takes from the plan, what delivers. Every method returns at once, from any thread."""

    def __init__(self, loader: str, backend: str) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._taking = backend  # the engine that new batches are to be taken by
        self._backend = backend  # the engine of the batch delivered last
        self._preparing: Wish | None = None
        self._ready: Wish | None = None  # applied or to be applied; its first batch has not been delivered
        self._status = backend
        self._failed = False  # the status tells of a failure, which the fallback's first batch does not replace
        self._history: list[Switch] = []
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
        if older is not None:
            emit("switch-superseded", self._loader, target=older.target)
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
        with self._lock:
            if self._preparing is not wish:
                return
            self._preparing = None
            message = self._failure(wish.target, error, self._taking)
        emit("switch-failed", self._loader, target=wish.target, message=message)

    def gave_up(self, target: str, error: BaseException, fallback: str) -> None:
        """The engine that takes cannot go on: `fallback` takes from now on."""
        with self._lock:
            self._taking = fallback
            self._ready = None if fallback == self._backend else Wish(fallback, time.monotonic())
            message = self._failure(target, error, fallback)
            self._failed = self._ready is not None
        emit("switch-failed", self._loader, target=target, message=message)

    def begun(self, record: EpochRecord) -> None:
        """An iteration begins."""
        self._record = record

    def delivered(self, name: str, epoch: int, batch: int) -> None:
        """A batch of engine `name` is handed to the loop."""
        self._batches += 1
        if name == self._backend:
            return
        now = time.monotonic()
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

    def _failure(self, target: str, error: BaseException, other: str) -> str:
        cause = str(error).strip().splitlines()
        message = cause[0] if cause else type(error).__name__
        self._status = f"{target} failed: {message}; {other} goes on"
        return message


def prepare(board: Switchboard, wish: Wish, slot: Slot) -> None:
    """Build the engine of a wish and say so to the board."""
    try:
        with slot.use() as engine:
            engine.prepare()
    except Exception as error:
        log.warning("%s cannot be used", wish.target, exc_info=True)
        board.failed(wish, error)
        return
    board.ready(wish)


def prepare_in_background(board: Switchboard, wish: Wish, slot: Slot) -> None:
    """Start `prepare` on a thread of its own and return at once."""
    thread = threading.Thread(target=prepare, args=(board, wish, slot), name=f"prepare {wish.target}", daemon=True)
    # Thread.start() waits for the thread to run, and then for the GIL that it holds: 5 ms and more. So a bare
    # thread, for which nobody waits, does the starting.
    _thread.start_new_thread(thread.start, ())
