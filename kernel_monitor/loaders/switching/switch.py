"""The state of a switch: requested by any thread, made ready by `Preparation`, applied by the thread that iterates.

settled ──request──▶ preparing ──ready──▶ ready ──next boundary, first batch──▶ settled
                         │ failed, or a newer request         (the outgoing engine delivers all the while)
                         └────────────▶ settled
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...paths import error_text
from ..events import emit

if TYPE_CHECKING:
    from ..knobs import Knobs
    from ..plan import EpochRecord

CLICKS_KEPT = 1000


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


class SwitchState:
    """Which engine is requested, which takes batches from the plan, which delivers. Any thread; nothing here waits.

    Args:
        loader: its id.
        backend: the one in use.
        files: paths of some of the data set's files, whose folders no message is to name.
    """

    def __init__(self, loader: str, backend: str, files: Callable[[], Sequence[str]] = tuple) -> None:
        self._loader = loader
        self._files = files
        self._lock = threading.Lock()
        self._active = backend  # takes new batches
        self._backend = backend  # delivered last
        self._preparing: Click | None = None
        self._ready: str | None = None  # active, but its first batch has not been delivered
        self._status = backend
        self._failed = False  # the status shows a failure, which the fallback's first batch must not replace
        self._history: list[Switch] = []
        self._clicks: deque[Click] = deque(maxlen=CLICKS_KEPT)  # at most the last one is pending
        self._asked: dict[str, float] = {}  # backend → when it was asked for last, s (monotonic)
        self._batches = 0  # delivered so far
        self._record: EpochRecord | None = None  # of the iteration that began last
        self._when_ready = (0, 0)  # batches delivered and in flight when the last requested engine became ready

    @property
    def active(self) -> str:
        """The backend that takes batches from the plan, from the next boundary on."""
        return self._active

    @property
    def backend(self) -> str:
        """The backend in use: of the batch delivered last."""
        return self._backend

    @property
    def wanted(self) -> str | None:
        """The backend that was requested and has not delivered yet."""
        click = self._preparing
        return self._ready if click is None else click.target

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
    def preparing(self) -> Click | None:
        """The request whose engine is not ready yet."""
        return self._preparing

    def request(self, target: str) -> Click | None:
        """Enter a request. Returns it if an engine must be prepared for it, else None."""
        with self._lock:
            older, source = self._preparing, self._active
            if older is not None and older.target == target:
                return None
            if older is None and target == source:
                return None
            click = Click(target, self._backend, time.monotonic())
            self._asked[target] = click.asked
            superseded = self._end("superseded")
            self._clicks.append(click)
            self._preparing = None if target == source else click
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

    def ready(self, click: Click) -> None:
        """The engine of a request can take; a request that was superseded meanwhile changes nothing."""
        with self._lock:
            if self._preparing is not click:
                return
            self._preparing = None
            self._active = click.target
            self._when_ready = (self._batches, 0 if self._record is None else self._record.in_flight)
            if click.target == self._backend:  # back before the other engine delivered anything
                self._ready, self._status = None, click.target
            else:
                self._ready, self._status = click.target, f"{click.target} ready, from the next batch"
        emit("engine-ready", self._loader, target=click.target)

    def failed(self, click: Click, error: BaseException) -> None:
        """The engine of a request cannot be built: the outgoing one goes on."""
        message = self._cause(error)
        with self._lock:
            if self._preparing is not click:
                return
            self._preparing = None
            self._status = f"{click.target} failed: {message}; {self._active} goes on"
            self._end("failed", message=message)
        emit("switch-failed", self._loader, target=click.target, message=message)

    def fall_back(self, target: str, error: BaseException, fallback: str) -> None:
        """The active engine cannot go on: `fallback` takes from now on."""
        message = self._cause(error)
        with self._lock:
            self._active = fallback
            self._ready = None if fallback == self._backend else fallback
            self._status = f"{target} failed: {message}; {fallback} goes on"
            self._failed = self._ready is not None
            if self._pending is not None and self._pending.target == target:
                self._end("failed", message=message)
        emit("switch-failed", self._loader, target=target, message=message)

    def add_notice(self, sentence: str) -> None:
        """Add a sentence to the status, until the status changes."""
        with self._lock:
            self._status = f"{self._status}. {sentence}"

    def epoch_begins(self, record: EpochRecord) -> None:
        self._record = record

    def cancel(self) -> None:
        """The loader is released or gone: cancel a request that has not taken effect."""
        with self._lock:
            cancelled = self._end("cancelled")
            if cancelled is None:
                return
            self._preparing = self._ready = None
            self._active = self._status = self._backend
        emit("switch-cancelled", self._loader, target=cancelled.target)

    def knobs_changed(self, knobs: Knobs, error: BaseException | None = None) -> None:
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
            newest: whether it is from the run that takes from the plan, not from one that only drains.
        """
        self._batches += 1
        pending = self._pending
        if name == self._backend and pending is None:
            return
        now = time.monotonic()
        if pending is not None and newest and name == pending.target == self._active:
            with self._lock:
                if self._pending is pending:
                    self._end("done", epoch=epoch, batch=batch)
        if name == self._backend:
            return
        with self._lock:
            switch = Switch(epoch, batch, self._backend, name, self._asked.get(name, now), now)
            self._history.append(switch)
            self._backend = name
            if name == self._active:
                self._ready = None
                settled = f"{name} since batch {batch}"
            else:  # it was asked to stop again before its first batch was handed over
                self._ready = self._active
                settled = f"{self._active} ready, from the next batch"
            if self._preparing is None and not self._failed:
                self._status = settled
            self._failed = self._failed and name != self._active
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
        """The first line of an error's text, without folders, as it may be recorded."""
        lines = error_text(error, *self._files()).splitlines()
        return lines[0] if lines else type(error).__name__
