"""A long-lived pipeline, DALI's or one of threads, that is fed file names and the parameters of each sample.

After an error in it the pipeline is built anew, and the batch that met it is computed by the torchvision path.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import islice
from typing import Any

import torch

from ...errors import BackendUnavailable
from ..plan import Slot
from . import process_end, worker_start
from .dali_batch import Batches, Issued
from .dali_graph import explained
from .engine import Delivery, EngineFailed, Pull

DEPTH = 4  # batches in flight, by default
FAILURES = 3  # errors of a pipeline in a row that no bad file explains, before the engine gives up
_WARM_UP_SEARCH = 64  # files looked at to find some to warm up with
WARM_UP = 2  # files to warm up with: two sizes show whether a pipeline of the user's own makes them one
_WARM_UPS = 3  # attempts, with other files each
_ENDS = "Python ends"

log = logging.getLogger(__name__)


class PipelineEngine:
    """See the module's text.

    `batches` feeds the pipeline, and makes of its images what `receive` returns. The pipeline is built for `batch_size`
    samples, and grows with larger batches; `depth` is the most batches in flight.
    """

    def __init__(self, batches: Batches, *, batch_size: int, threads: int, depth: int) -> None:
        self.name = batches.name
        self.depth = depth
        self.broken = False
        self._batches = batches
        self._batch_size = batch_size
        self._threads = threads
        self._pipeline: Any = None
        self._queue: deque[Issued] = deque()
        self._held: Slot | None = None  # larger than the pipeline: waits until it can be built anew
        self._pull: Pull | None = None
        self._error: Exception | None = None
        self._failures = 0

    def prepare(self) -> None:
        """Build the pipeline and run it once on real files, unless it stands already; or raise `BackendUnavailable`."""
        if self._pipeline is not None and not self.broken:
            return
        worker_start.note_dali()
        with process_end.using() as may:
            if not may:
                raise EngineFailed(_ENDS)
            with worker_start.dali_lock:
                self._pipeline = self._build()
        self.broken = False

    def start(self, pull: Pull) -> None:
        stale = sum(issued.scheduled for issued in self._queue)
        self._queue.clear()
        self._held, self._pull, self._failures = None, pull, 0
        if self._error is None and not self.broken and self._pipeline is not None:
            try:
                for _ in range(stale):
                    self._pipeline.outputs()
            except Exception as error:  # noqa: BLE001 - the pipeline's own, of abandoned batches
                log.warning("%s failed on an abandoned batch: %s; building it anew", self.name, explained(error))
                self.broken = True
        if self._error is not None or self.broken:
            self._pipeline, self._error = None, None
        self.prepare()

    def pump(self, most: int | None = None) -> None:
        depth = self.depth if most is None else min(self.depth, len(self._queue) + most)
        while len(self._queue) < depth and self._pull is not None:
            slot, self._held = self._held, None
            slot = slot or self._pull()
            if slot is None:
                return
            issued = self._batches.look(slot)
            grows = self._batches.outgrown(issued)
            if grows or len(slot.indices) > self._batch_size:
                if self._queue:
                    self._held = slot
                    return
                self._batch_size, self._pipeline = max(self._batch_size, len(slot.indices)), None
                if grows:
                    issued = self._batches.grow(issued)
                self.prepare()
            self._issue(issued)

    @property
    def waiting(self) -> int:
        return len(self._queue) + (self._held is not None)

    def receive(self) -> Delivery:
        with process_end.using():
            return self._receive()

    def _receive(self) -> Delivery:
        issued = self._queue[0]
        images = None
        if self._error is None and issued.scheduled:
            try:
                images = self._batches.unpack(self._outputs(self._pipeline))
                self._failures = 0
            except EngineFailed:
                raise
            except Exception as error:  # noqa: BLE001 - the pipeline's own: nothing else runs in there
                self._error = error
        if self._error is not None:
            return self._recover()
        self._queue.popleft()
        self.pump()  # the pipeline goes on while this batch is put together and used
        return self._batches.assemble(issued, images, issued.reasons)

    def release(self) -> None:
        self._queue.clear()
        self._pipeline = self._held = self._pull = self._error = None
        self.broken = False
        self._batches.close()

    def _build(self) -> Any:
        """A pipeline that has run once; if it fails on some files, others are tried."""
        files = list(islice(self._batches.trials(_WARM_UP_SEARCH), WARM_UP * _WARM_UPS))
        failure: Exception | None = None
        step = min(WARM_UP, self._batch_size)
        for first in range(0, max(1, len(files)), step):
            pipeline = self._batches.build(batch_size=self._batch_size, threads=self._threads)
            some = files[first : first + step]
            try:
                if some:
                    self._batches.feed(pipeline, self._batches.trial(some))
                    self._batches.unpack(self._outputs(pipeline))
            except EngineFailed:
                raise
            except Exception as error:  # the pipeline's own: raised if all attempts fail
                failure = error
                if not threading.main_thread().is_alive():
                    raise  # the program ends
                log.warning("%s failed on the first files: %s", self.name, explained(error))
            else:
                return pipeline
        unavailable = BackendUnavailable(f"{self.name} fails on the first files: {failure and explained(failure)}")
        unavailable.paths = tuple(self._batches.trial(files).paths)
        raise unavailable from failure

    def _issue(self, issued: Issued) -> None:
        self._queue.append(issued)
        if issued.good and self._error is None:
            try:
                self._batches.feed(self._pipeline, issued)
            except Exception as error:  # noqa: BLE001 - the pipeline's own; dealt with when this batch's turn comes
                self._error = error

    def _outputs(self, pipeline: Any) -> Any:
        device = self._batches.device
        # Bound to torch's current stream: torch's work waits for DALI's, and the memory is reused after it.
        stream = {} if device is None else {"cuda_stream": torch.cuda.current_stream(device)}
        return pipeline.outputs(**stream)

    def _recover(self) -> Delivery:
        """Build the pipeline anew, issue again what was under way, compute the oldest batch without it."""
        error, self._error = self._error, None
        if process_end.ending():
            raise EngineFailed(_ENDS) from error
        reason = f"{self._batches.maker} failed: {'' if error is None else explained(error)}"
        self._failures += 1
        if self._failures > FAILURES:
            failed = EngineFailed(f"{self.name} failed {self._failures} times in a row. {reason}")
            failed.paths = tuple(path for issued in self._queue for path in issued.paths)
            raise failed from error
        log.warning("%s: %s; building it anew", self.name, reason)
        under_way = [issued.slot for issued in self._queue]
        self._queue.clear()
        self._pipeline = None
        self.prepare()
        oldest = self._batches.look(under_way[0])
        for slot in under_way[1:]:
            self._issue(self._batches.look(slot))
        self.pump()
        delivery = self._batches.assemble(oldest, None, dict.fromkeys(oldest.good, reason) | oldest.reasons)
        if delivery.error is not None or delivery.skipped:
            self._failures = 0  # an unreadable file, not the pipeline, is to blame
        return delivery
