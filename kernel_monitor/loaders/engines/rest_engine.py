"""An engine in which DALI does the first transforms of a chain, and workers do those that DALI cannot do.

DALI decodes a batch in this process; its 8-bit images go through shared memory to a worker, which applies the other
transforms with the plan's numbers, the target transforms and the collate function, as the torchvision path does. Files
that DALI is not given are opened by the worker.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..data.fingerprint import fingerprint
from ..data.image_files import DONE, Decoded, Start
from ..data.keyed_dataset import KeyedDataset
from ..data.worker_settings import Inherited
from ..plan import Fallback, Slot
from . import torch_engine
from .dali_batch import Batches, Images, Issued, formed
from .dali_parts import PartBatches
from .engine import Delivery, EngineFailed, Pull
from .pipeline_engine import PipelineEngine
from .torch_engine import PREFETCH, WorkersEngine

LEAST = 2  # batches in flight at least: one with DALI, one with a worker


class Packing(Batches):
    """Packs DALI's images for a worker, instead of making a finished batch of them."""

    def assemble(self, issued: Issued, images: Images | None, reasons: dict[int, str]) -> Delivery:
        slot = issued.slot
        indices = np.asarray(slot.indices, dtype=np.int64)
        decoders = [torch_engine.NAME if row in reasons else self.name for row in range(len(indices))]
        delivery = Delivery(slot.number, indices, slot, decoders=decoders)
        if images is not None:
            delivery.batch = slot._replace(decoded=Decoded(issued.good, *self._begun(images, issued)))
        delivery.fallbacks = [
            Fallback(slot.key(row), issued.located[row].path, reason) for row, reason in sorted(reasons.items())
        ]
        if images is None and issued.good:
            delivery.error = self._unreadable(issued)
        return delivery

    def _begun(self, images: Images, issued: Issued) -> tuple[list[Start], list[torch.Tensor]]:
        """Return for each image what the worker is still to do with it, and the images."""
        start = Start(DONE if self.work.rest is None else self.work.rest, self.work.rest_kind)
        return [start] * len(issued.good), list(images)

    def _unreadable(self, issued: Issued) -> Exception | None:
        """Return the error of the first unreadable file, which explains DALI's failure; None if all can be read."""
        for row in issued.good:
            try:
                self.keyed.source.open(issued.located[row])
            except Exception as error:  # noqa: BLE001 - the worker meets it again, and reports it
                return error
        return None


class PartPacking(Packing, PartBatches):
    """Packs the images of several pipelines; what DALI has finished is passed on by the worker as it is."""

    def _begun(self, images: Images, issued: Issued) -> tuple[list[Start], list[torch.Tensor]]:
        starts: list[Start] = []
        found: list[torch.Tensor] = []
        for row, chain, image in zip(issued.good, issued.chains, images, strict=True):
            work = self.work_of(chain)
            done = work.rest is None
            starts.append(Start(DONE if work.rest is None else work.rest, work.rest_kind))
            found.append(formed(image, self._example(issued, row, chain)) if done else image)
        return starts, found


class RestEngine:
    """The engine that the module's docstring describes.

    Args:
        keyed: the data set with the plan's numbers.
        wrapped: the DataLoader whose settings the workers have.
        decoder: DALI with `Packing`; its depth is set here.
        workers: the number of workers.
        prefetch: batches in flight for each worker, including those with DALI; None: as in the wrapped loader.
    """

    def __init__(
        self, keyed: KeyedDataset, wrapped: DataLoader[Any], decoder: PipelineEngine, workers: int, prefetch: int | None
    ) -> None:
        self.name = decoder.name
        self.broken = False
        self.depth = max(LEAST, workers * (prefetch or wrapped.prefetch_factor or PREFETCH))
        self._keyed = keyed
        self._wrapped = wrapped
        self._decoder = decoder
        decoder.depth = min(2, self.depth // 2)
        self._pool = WorkersEngine(keyed, wrapped, workers, max(1, -(-self.depth // workers)))
        self._packed: deque[Delivery] = deque()  # the batches that the workers have
        self._next: Slot | None = None  # the batch that the workers take next
        self._epoch: int | None = None  # the last epoch in which the workers were checked to have the present data set
        self._sent = b""  # a digest of the data set that the workers have

    @property
    def pids(self) -> list[int]:
        """The process ids of its workers, for any thread."""
        return self._pool.pids

    def prepare(self) -> None:
        """Build the pipeline and start the workers, unless that was done."""
        self._decoder.prepare()
        if not self._pool.started:
            self._sent = self._digest()
            self._pool.prepare()

    def start(self, pull: Pull) -> None:
        self._decoder.broken = self._decoder.broken or self.broken
        self._pool.broken = self._pool.broken or self.broken
        self._packed.clear()
        self._next = None

        def renewing() -> Slot | None:
            slot = pull()
            if slot is not None and (slot.number == 0 or slot.epoch != self._epoch):
                self._update_workers(slot.epoch)
            return slot

        self.broken = True  # until both have started
        self._decoder.start(renewing)
        self._pool.start(self._take_packed)
        self.broken = False

    def pump(self, most: int | None = None) -> None:
        """Take as many batches as fit, or `most`; in that case do not wait for DALI's newest batch."""
        if most is not None:
            if self._decoder.waiting >= self._decoder.depth and self._has_room:
                self._pass_to_worker()
            self._decoder.pump(most)
            return
        self._decoder.pump()
        while self._decoder.waiting and self._has_room:
            self._pass_to_worker()

    def receive(self) -> Delivery:
        self.pump()
        if not self._packed:
            raise EngineFailed("no batch was asked for")
        computed = self._pool.receive()
        packed = self._packed.popleft()
        if computed.error is not None:
            return computed
        skipped, decoders = computed.skipped, packed.decoders
        undecoded = [row for row, decoder in enumerate(decoders) if decoder != self.name]  # by DALI
        computed.decoders = [decoder for row, decoder in enumerate(decoders) if row not in skipped]
        pairs = zip(undecoded, packed.fallbacks, strict=True)
        computed.fallbacks += [fallback for row, fallback in pairs if row not in skipped]
        return computed

    def release(self) -> None:
        self._packed.clear()
        self._next = None
        self.broken = False
        self._decoder.release()
        self._pool.release()

    @property
    def _has_room(self) -> bool:
        return len(self._packed) + self._decoder.depth < self.depth

    def _pass_to_worker(self) -> None:
        packed = self._decoder.receive()
        self._next = packed.batch
        self._packed.append(packed)
        self._pool.offer()

    def _take_packed(self) -> Slot | None:
        slot, self._next = self._next, None
        return slot

    def _update_workers(self, epoch: int) -> None:
        self._epoch = epoch
        if self._wrapped.persistent_workers or self._packed:
            return
        now = self._digest()
        if now != self._sent:
            self._sent = now
            self._pool.release()
            self._pool.start(self._take_packed)

    def _digest(self) -> bytes:
        wrapped = self._wrapped
        return fingerprint(self._keyed.source.dataset, wrapped.collate_fn, wrapped.worker_init_fn, Inherited.now())
