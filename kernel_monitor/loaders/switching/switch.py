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

from ...privacy import error_text
from ..events import emit

if TYPE_CHECKING:
    from ..engines.engine import Knobs
    from ..plan import EpochRecord

_CLICKS_KEPT = 1000


class Switch(NamedTuple):
    """One switch that took place."""

    epoch: int
    batch: int  # number in its epoch of the first batch from the new engine
    source: str  # source, target: names of the backends
    target: str
    asked: float  # s (monotonic), when it was asked for
    first: float  # s (monotonic), when the first batch from the new engine was delivered


class Click(NamedTuple):
    """One request for another backend, and what became of it."""

    target: str  # name of the backend that was asked for
    source: str  # name of the one in use then
    asked: float  # s (monotonic), when it was asked for
    # "pending"; "done", its first batch was delivered; "superseded" by a newer one; "cancelled", because the loader was
    # released or dropped first; "failed"
    outcome: str = "pending"
    ended: float | None = None  # s (monotonic), when the outcome was known
    epoch: int | None = None  # epoch, batch: of its first batch, where it was done
    batch: int | None = None
    message: str | None = None  # the cause, where it failed


class SwitchState:
    """The engines of a loader that are requested, that take batches from the plan, and that deliver. For any thread."""

    def __init__(self, loader: str, backend: str, files: Callable[[], Sequence[str]] = tuple) -> None:
        self.active = backend  # takes batches from the plan, from the next boundary on
        self.backend = backend  # in use: of the batch delivered last
        self.preparing: Click | None = None  # the request whose engine is not ready yet
        self.status = backend  # the sentence of the page's status region
        self.lasting = ""  # a sentence that is shown beside it, see `last`
        self.record: EpochRecord | None = None  # of the iteration that began last
        self.faults: deque[str] = deque(maxlen=_CLICKS_KEPT)  # sentences, of the outermost guard
        self._loader = loader  # its id
        self._files = files  # paths of some of the data set's files, whose folders no message is to name
        self._lock = threading.Lock()
        self._ready: str | None = None  # active, but its first batch has not been delivered
        self._failed = False  # the status shows a failure, which the fallback's first batch must not replace
        self._history: list[Switch] = []
        self._clicks: deque[Click] = deque(maxlen=_CLICKS_KEPT)  # at most the last one is pending
        self._asked: dict[str, float] = {}  # backend → when it was asked for last, s (monotonic)
        self._batches = 0  # delivered so far
        self._when_ready = (0, 0)  # batches delivered and in flight when the last requested engine became ready

    @property
    def sentence(self) -> str:
        """The status, with what is to be shown beside it."""
        return f"{self.status}. {self.lasting}" if self.lasting else self.status

    @property
    def wanted(self) -> str | None:
        """The backend that was requested and has not delivered yet."""
        click = self.preparing
        return self._ready if click is None else click.target

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

    def request(self, target: str) -> Click | None:
        """Enter a request. Returns it if an engine must be prepared for it, else None."""
        with self._lock:
            older, source = self.preparing, self.active
            if target == (source if older is None else older.target):
                return None
            click = Click(target, self.backend, time.monotonic())
            self._asked[target] = click.asked
            superseded = self._end("superseded")
            self._clicks.append(click)
            self.preparing = None if target == source else click
            self._failed = False
            if target != source:
                self.status = f"switching to {target}…"
            elif self._ready is not None:
                self.status = f"{target} ready, from the next batch"
            else:
                self.status = target
            prepare = self.preparing
        emit("switch-asked", self._loader, source=source, target=target)
        if superseded is not None:
            emit("switch-superseded", self._loader, target=superseded.target)
        return prepare

    def ready(self, click: Click) -> None:
        """The engine of a request can take; a request that was superseded meanwhile changes nothing."""
        with self._lock:
            if self.preparing is not click:
                return
            self.preparing = None
            self.active = click.target
            self._when_ready = (self._batches, 0 if self.record is None else self.record.in_flight)
            if click.target == self.backend:  # back before the other engine delivered anything
                self._ready, self.status = None, click.target
            else:
                self._ready, self.status = click.target, f"{click.target} ready, from the next batch"
        emit("engine-ready", self._loader, target=click.target)

    def waits(self, click: Click, sentence: str) -> None:
        """The engine of a request waits for something; the outgoing one goes on meanwhile."""
        with self._lock:
            if self.preparing is click:
                self.status = f"switching to {click.target}: {sentence}; {self.active} goes on"

    def failed(self, click: Click, error: BaseException) -> None:
        """The engine of a request cannot be built: the outgoing one goes on."""
        message = self._cause(error)
        with self._lock:
            if self.preparing is not click:
                return
            self.preparing = None
            self.status = f"{click.target} failed: {message}; {self.active} goes on"
            self._end("failed", message=message)
        emit("switch-failed", self._loader, target=click.target, message=message)

    def fall_back(self, target: str, error: BaseException, fallback: str) -> None:
        """The active engine cannot go on: `fallback` takes from now on."""
        message = self._cause(error)
        with self._lock:
            self.active = fallback
            self._ready = None if fallback == self.backend else fallback
            self.status = f"{target} failed: {message}; {fallback} goes on"
            self._failed = self._ready is not None
            if self._pending is not None and self._pending.target == target:
                self._end("failed", message=message)
        emit("switch-failed", self._loader, target=target, message=message)

    def fault(self, error: BaseException, consequence: str) -> None:
        """Something of this package failed beside the engines; the sentence stays until the status changes."""
        message = self._cause(error)
        with self._lock:
            self.status = f"kernel_monitor failed ({type(error).__name__}: {message}); {consequence}"
            self.faults.append(self.status)
        emit("fault", self._loader, message=self.status)

    def last(self, sentence: str) -> None:
        """Show a sentence beside the status, whatever that becomes; "" takes it away."""
        self.lasting = sentence
        if sentence:
            emit("fault", self._loader, message=sentence)

    def add_notice(self, sentence: str) -> None:
        """Add a sentence to the status, until the status changes."""
        with self._lock:
            self.status = f"{self.status}. {sentence}"

    def cancel(self) -> None:
        """The loader is released or gone: cancel a request that has not taken effect."""
        with self._lock:
            cancelled = self._end("cancelled")
            if cancelled is None:
                return
            self.preparing = self._ready = None
            self.active = self.status = self.backend
        emit("switch-cancelled", self._loader, target=cancelled.target)

    def knobs_changed(self, knobs: Knobs, error: BaseException | None = None) -> None:
        """The knobs have new values; with an error: they have the old ones again, because of it."""
        message = None
        if error is not None:
            message = self._cause(error)
            self.status = f"the change of workers, prefetch or threads failed: {message}; all goes on as before"
        emit("knobs", self._loader, **knobs._asdict(), message=message)

    def delivered(self, name: str, epoch: int, batch: int, newest: bool = True) -> None:
        """A batch is handed to the loop; `newest`: from the run that takes from the plan, not one that only drains."""
        self._batches += 1
        pending = self._pending
        if name == self.backend and pending is None:
            return
        now = time.monotonic()
        if pending is not None and newest and name == pending.target == self.active:
            with self._lock:
                if self._pending is pending:
                    self._end("done", epoch=epoch, batch=batch)
        if name == self.backend:
            return
        with self._lock:
            switch = Switch(epoch, batch, self.backend, name, self._asked.get(name, now), now)
            self._history.append(switch)
            self.backend = name
            if name == self.active:
                self._ready = None
                settled = f"{name} since batch {batch}"
            else:  # it was asked to stop again before its first batch was handed over
                self._ready = self.active
                settled = f"{self.active} ready, from the next batch"
            if self.preparing is None and not self._failed:
                self.status = settled
            self._failed = self._failed and name != self.active
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
