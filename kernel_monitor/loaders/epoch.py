"""One iteration of a loader: a cursor over one epoch's plan, and the engines that deliver it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ..steps.meter import StepClock
from .engines.base import Delivery
from .engines.synthetic import NAME as SYNTHETIC
from .engines.synthetic import keep
from .engines.torch_engine import NAME as TORCHVISION
from .plan import Cursor
from .segment import Segment, Slot

if TYPE_CHECKING:
    from .loader import SwitchableLoader


class EpochIterator:
    """What `iter(loader)` returns. Its batches are the plan's, in order, once each, whoever computes them.

    At each batch boundary the wanted engine is looked up. When it changes, the outgoing engine takes no more from
    the plan, the incoming one takes from the cursor at once, and the loop is given the outgoing one's batches first.
    """

    def __init__(self, loader: SwitchableLoader, cursor: Cursor) -> None:
        self._loader = loader  # keeps the engines alive while somebody iterates
        self._board = loader.board
        self._cursor = cursor
        self._record = cursor.record
        self._segments: deque[Segment] = deque()
        self._clock = StepClock(loader.meter)
        self._lead = 0.0  # s that `begin` took: counts as waiting for the first batch
        self._finished = False

    def __del__(self) -> None:
        """An iterator that never delivered costs neither an epoch nor a draw: some frameworks make one for a look."""
        self._loader.left(self._record)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader) - self._record.passed

    def begin(self) -> None:
        """Let the wanted engine start to work before the first batch is asked for."""
        self._board.begun(self._record)
        started = time.monotonic()
        while True:
            try:
                self._boundary()
                break
            except BaseException as error:  # noqa: BLE001 - raised again unless another engine can go on
                self._failed(error)
        self._cursor.fill()
        self._lead = time.monotonic() - started

    def __next__(self) -> Any:
        asked = time.monotonic()
        with self._loader.turn:
            return self._deliver(asked)

    def _deliver(self, asked: float) -> Any:
        """The next batch, for the loop, which asked for it at `asked` (s, monotonic)."""
        self._clock.ask(asked - self._lead)
        self._lead = 0.0
        try:
            self._cursor.ask()
            delivery = self._next()
            while not self._record_one(delivery):
                self._cursor.ask()
                delivery = self._next()
            self._cursor.fill()
        except BaseException:
            self._clock.stop()
            raise
        keep(self._board, self._loader.slot(SYNTHETIC), delivery)
        self._clock.got(len(delivery.indices), epoch=self._record.number, batch=delivery.number)
        return delivery.batch

    def _record_one(self, delivery: Delivery) -> bool:
        """Note a delivery; returns whether the loop is to be given it: not where every sample was skipped.

        Raises:
            BaseException: what answers the batch.
        """
        record = self._record
        record.note(delivery.fallbacks)
        if delivery.error is not None:
            record.raised(delivery.number)
            raise delivery.error
        record.delivered(
            delivery.number, delivery.indices, delivery.decoders, delivery.skipped, replaced=delivery.replaced
        )
        return len(delivery.indices) > 0 or not delivery.skipped

    def _next(self) -> Delivery:
        """The next delivery of the plan, from whichever engine has it."""
        while not self._finished:
            segment: Segment | None = None
            try:
                self._boundary()
                if not self._segments:
                    break
                segment = self._segments[0]
                if segment.stranded:
                    self._give_back()
                elif segment.more:
                    newest = segment is self._segments[-1]
                    if not newest:
                        self._segments[-1].nudge()
                    delivery = segment.receive()
                    if delivery.error is None:
                        self._board.delivered(segment.name, self._record.number, delivery.number, newest)
                    return delivery
                elif segment.closed or self._cursor.exhausted:
                    self._segments.popleft()
                    self._loader.slots.reap()
                else:  # the engine was taken over: come back to it
                    segment.close()
            except BaseException as error:  # noqa: BLE001 - raised again unless another engine can go on
                self._failed(error)
        if not self._finished:
            self._finished = True
            self._record.finish()
            keep(self._board, self._loader.slot(SYNTHETIC), None)
            if self._cursor.failure is not None:
                raise self._cursor.failure
        raise StopIteration

    def _boundary(self) -> None:
        """Between two batches: stop the outgoing engine, start the incoming one."""
        board = self._board
        self._loader.look()
        target = board.taking
        slot = self._loader.slot(target)
        if self._segments and self._segments[-1].slot is not slot:
            self._segments[-1].close()
        if self._cursor.exhausted or (self._segments and not self._segments[-1].closed):
            return
        if any(segment.slot is slot and segment.in_flight for segment in self._segments):
            return  # it still has batches of ours from before; it starts again once they are delivered
        loader = self._loader  # not self: an iteration that is left must go, with its loader, without a collector

        def wanted() -> bool:
            return loader.slot(board.taking) is slot

        segment = Segment(slot, self._cursor, wanted)
        draining = any(earlier.in_flight for earlier in self._segments)
        self._segments.append(segment)
        slot.start(segment, gently=draining)
        self._loader.slots.started(slot)

    def _failed(self, error: BaseException) -> None:
        """An engine failed or the loop was interrupted: nothing under way is lost.

        A failure of any engine but the wrapped loader's own is not the training's: torchvision goes on.
        """
        culprit = self._culprit()
        self._give_back()
        try:
            if not isinstance(error, Exception) or culprit is None:
                raise error
            if self._loader.slots.roll_back(culprit, error):
                return
            name = culprit.engine.name
            if name == TORCHVISION:
                raise error
            self._board.gave_up(name, error, TORCHVISION)
        finally:
            # The error's traceback refers to this frame: without a cycle the iterator goes when the loop drops it, and
            # not whenever a collection comes.
            del error

    def _culprit(self) -> Slot | None:
        """The engine that is broken: the incoming one if it did not start, else the one that delivers."""
        return next((segment.slot for segment in self._segments if segment.slot.engine.broken), None)

    def _give_back(self) -> None:
        """Return everything in flight to the plan, to be taken again by the engine that is wanted then."""
        takes = []
        for segment in self._segments:
            segment.close()
            takes.extend(segment.undelivered())
        self._segments.clear()
        self._cursor.give_back(takes)
