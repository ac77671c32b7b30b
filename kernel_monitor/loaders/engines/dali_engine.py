"""DALI, on the CPU or a GPU: one long-lived pipeline that is told which files to read and what to do with each.

Samples that are not known to be good for DALI are computed by the torchvision path, in the same place of the same
batch, and are recorded with the reason. After an error of DALI's own the pipeline is built anew and the batch that
met it is computed by the torchvision path.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.dlpack import from_dlpack

from ..data.files import Facts, FileTable
from ..data.keyed import BadSample, KeyedDataset, own_generators
from ..data.sources import Located
from ..plan import Fallback, Take
from ..transforms.program import Program, arrays
from . import dali_graph, torch_engine
from .base import Delivery, EngineFailed, Pull

DEPTH = 4  # batches in flight
FAILURES = 3  # errors of DALI in a row before the engine gives up
WARM_UP_SEARCH = 64  # files looked at to find one to warm up with

log = logging.getLogger(__name__)


@dataclass
class _Issued:
    """A batch under way: its files, which of its rows DALI computes, and why the others are not."""

    take: Take
    located: list[Located]
    facts: list[Facts]
    good: list[int]
    scheduled: bool = False


class DaliEngine:
    """See the module's text.

    Args:
        name: `dali-cpu` or `dali-gpu`.
        keyed: the data set by keys, for the torchvision path and the samples' keys.
        program: the translated transforms.
        collate: the user's collate function.
        batch_size: of the wrapped loader; larger batches make the pipeline grow.
        threads: CPU threads of the pipeline.
        device: number of the CUDA device, None for the CPU.
        pin: whether batches in host memory are to be pinned.
    """

    depth = DEPTH

    def __init__(
        self,
        name: str,
        keyed: KeyedDataset,
        program: Program,
        collate: Callable[[list[Any]], Any],
        *,
        batch_size: int,
        threads: int,
        device: int | None,
        pin: bool,
    ) -> None:
        self.name = name
        self.broken = False
        self.program = program
        self._keyed = keyed
        self._collate = collate
        self._batch_size = batch_size
        self._threads = threads
        self._device = device
        self._pin = pin and device is None
        self._files = FileTable(keyed.source.files)
        self._pipeline: Any = None
        self._queue: deque[_Issued] = deque()
        self._held: Take | None = None  # larger than the pipeline: waits until it can be built anew
        self._pull: Pull | None = None
        self._error: Exception | None = None
        self._failures = 0

    def prepare(self) -> None:
        """Build the pipeline and run it once on a real file, unless it stands already."""
        if self._pipeline is not None and not self.broken:
            return
        torch_engine.note_dali()
        self._pipeline = dali_graph.build(
            self.program, batch_size=self._batch_size, threads=self._threads, device=self._device
        )
        source = self._keyed.source
        for index in range(min(len(source), WARM_UP_SEARCH)):
            issued = self._look(Take(0, 0, [index], [0]))
            if issued.good:
                self._schedule(issued)
                self._pipeline.outputs()
                break
        self.broken = False

    def start(self, pull: Pull) -> None:
        stale = sum(issued.scheduled for issued in self._queue)
        self._queue.clear()
        self._held, self._pull, self._failures = None, pull, 0
        if self._error is None and not self.broken and self._pipeline is not None:
            try:
                for _ in range(stale):
                    self._pipeline.outputs()
            except Exception as error:  # noqa: BLE001 - DALI's own, of batches that nobody waits for any more
                log.warning("%s failed on an abandoned batch: %s; building it anew", self.name, error)
                self.broken = True
        if self._error is not None or self.broken:
            self._pipeline, self._error = None, None
        self.prepare()

    def pump(self) -> None:
        while len(self._queue) < DEPTH and self._pull is not None:
            take, self._held = self._held, None
            take = take or self._pull()
            if take is None:
                return
            if len(take.indices) > self._batch_size:
                if self._queue:
                    self._held = take
                    return
                self._batch_size, self._pipeline = len(take.indices), None
                self.prepare()
            self._issue(take)

    def receive(self) -> Delivery:
        issued = self._queue[0]
        images = None
        if self._error is None and issued.scheduled:
            try:
                images = self._images()
                self._failures = 0
            except Exception as error:  # noqa: BLE001 - DALI's own: nothing else runs in there
                self._error = error
        if self._error is not None:
            return self._recover()
        self._queue.popleft()
        self.pump()  # DALI goes on while this batch is put together and used
        return self._assemble(issued, images, {row: issued.facts[row].reason or "" for row in self._bad(issued)})

    def release(self) -> None:
        self._queue.clear()
        self._pipeline = self._held = self._pull = self._error = None
        self.broken = False

    def _look(self, take: Take) -> _Issued:
        """Find a batch's files and examine them."""
        source = self._keyed.source
        located = [source.locate(index) for index in take.indices]
        if source.opens_plainly:
            facts = [self._files.look(one.number, source.absolute(one.path)) for one in located]
        else:
            facts = [Facts(0, 0, "the data set opens its files by a function of its own")] * len(located)
        good = [row for row, fact in enumerate(facts) if fact.reason is None]
        return _Issued(take, located, facts, good)

    def _issue(self, take: Take) -> None:
        issued = self._look(take)
        self._queue.append(issued)
        if issued.good and self._error is None:
            try:
                self._schedule(issued)
            except Exception as error:  # noqa: BLE001 - DALI's own; dealt with when this batch's turn comes
                self._error = error

    def _schedule(self, issued: _Issued) -> None:
        """Feed the good rows of a batch and let DALI run."""
        good = issued.good
        keys = self._keyed.keys(issued.take)[good]
        heights = np.array([issued.facts[row].height for row in good], dtype=np.int64)
        widths = np.array([issued.facts[row].width for row in good], dtype=np.int64)
        absolute = self._keyed.source.absolute
        names = [np.frombuffer(os.fsencode(absolute(issued.located[row].path)), dtype=np.uint8) for row in good]
        self._pipeline.feed_input("name", names)
        for name, values in arrays(self.program, keys, heights, widths).items():
            self._pipeline.feed_input(name, values)
        self._pipeline.schedule_run()
        issued.scheduled = True

    def _images(self) -> torch.Tensor:
        """The oldest run's images, without a copy: the dynamic executor never writes to them again."""
        if self._device is None:
            (images,) = self._pipeline.outputs()
        else:
            # Bound to torch's current stream: torch's work waits for DALI's, and the memory is reused after it.
            (images,) = self._pipeline.outputs(cuda_stream=torch.cuda.current_stream(self._device))
        return from_dlpack(images.as_tensor())

    @staticmethod
    def _bad(issued: _Issued) -> list[int]:
        return [row for row, fact in enumerate(issued.facts) if fact.reason is not None]

    def _recover(self) -> Delivery:
        """Build the pipeline anew, issue again what was under way, compute the oldest batch without DALI."""
        error, self._error = self._error, None
        reason = "DALI failed: " + (str(error).strip().splitlines() or [type(error).__name__])[0]
        self._failures += 1
        if self._failures > FAILURES:
            raise EngineFailed(f"{self.name} failed {self._failures} times in a row. {reason}") from error
        log.warning("%s: %s; building it anew", self.name, reason)
        under_way = [issued.take for issued in self._queue]
        self._queue.clear()
        self._pipeline = None
        self.prepare()
        oldest = self._look(under_way[0])
        for take in under_way[1:]:
            self._issue(take)
        self.pump()
        rows = range(len(oldest.take.indices))
        return self._assemble(oldest, None, {row: oldest.facts[row].reason or reason for row in rows})

    def _assemble(self, issued: _Issued, images: torch.Tensor | None, reasons: dict[int, str]) -> Delivery:
        """Put a batch together from DALI's images and, at the rows in `reasons`, the torchvision path's."""
        take = issued.take
        delivery = Delivery(take.number, np.asarray(take.indices, dtype=np.int64), None)
        fallbacks = [Fallback(take.indices[row], issued.located[row].path, why) for row, why in reasons.items()]
        try:
            with own_generators():
                targets: dict[int, Any] = {}
                if reasons or images is None:
                    fetched = self._keyed.fetch(take, list(reasons))
                    if isinstance(fetched.failure, BadSample):
                        delivery.error = fetched.failure.error()
                        return delivery
                    images = _merged(images, issued.good, list(reasons), [image for image, _ in fetched.content])
                    targets = {row: target for row, (_, target) in zip(reasons, fetched.content, strict=True)}
                delivery.batch = self._collated(images, issued, targets)
        except Exception as error:  # noqa: BLE001 - the user's transform or collate: raised in the user's loop
            delivery.error = error
            return delivery
        delivery.decoders = [torch_engine.NAME if row in reasons else self.name for row in range(len(take.indices))]
        delivery.fallbacks = fallbacks
        return delivery

    def _collated(self, images: torch.Tensor, issued: _Issued, known: dict[int, Any]) -> Any:
        """Apply the user's collate function; `known` are the targets that were computed already, by row."""
        change = self._keyed.source.base.target_transform
        targets = [
            known[row] if row in known else one.target if change is None else change(one.target)
            for row, one in enumerate(issued.located)
        ]
        if self._device is not None and images.device.type == "cpu":
            images = images.to(f"cuda:{self._device}")
        if self._collate is default_collate:
            batch: Any = [images, default_collate(targets)]
        else:
            batch = self._collate(list(zip(images, targets, strict=True)))
        return pin_memory(batch, "cuda") if self._pin else batch


def _merged(images: torch.Tensor | None, good: list[int], rows: list[int], samples: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of DALI's images (at `good`) and the torchvision path's (at `rows`)."""
    stacked = torch.stack(samples)
    if images is None:
        return stacked
    stacked = stacked.to(images.device)
    whole = images.new_empty((len(good) + len(rows), *images.shape[1:]))
    whole[good] = images
    whole[rows] = stacked
    return whole
