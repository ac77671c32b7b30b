"""`synthetic`: real batches that lie on the device already, handed out again and again. The ceiling of any loader.

A loop that is no faster on `synthetic` does not wait for its data. The batches are copies of the first ones that the
engine before it delivers once `synthetic` is wanted; from then on a fresh copy of one of them takes each place of the
plan, so that the loop keeps its length and may modify what it is given. The loop waits for each copy, which makes the
measured ceiling too low by as much.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from .engine import Delivery, EngineFailed, Pull, WhenAsked

NAME = "synthetic"
CONFIRM = (
    "Replay 4 real batches instead of loading new ones? The model trains on repeated samples until you switch back."
)
KEPT = 4  # batches; their number is part of CONFIRM


class _Kept(NamedTuple):
    """A batch to hand out: samples in it, the batch, whether every tensor has the samples along its first dimension."""

    samples: int
    batch: Any
    cuttable: bool


class SyntheticEngine(WhenAsked):
    """See the module's text. On `device` the kept batches lie and the copies are made."""

    name = NAME
    depth = 4  # places of the plan in flight

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._kept: list[_Kept] = []

    @property
    def kept(self) -> int:
        """Batches that it has to hand out."""
        return len(self._kept)

    def keep(self, delivery: Delivery) -> None:
        """Keep a copy of a real batch, made before the loop can modify it; no more than `KEPT`.

        Raises:
            Exception: something in the batch cannot be copied, or the device has no room for it.
        """
        if len(self._kept) == KEPT:
            return
        samples = len(delivery.indices)
        shapes: list[torch.Size] = []

        def first(tensor: torch.Tensor) -> torch.Tensor:
            shapes.append(tensor.shape)
            return self._fresh(tensor)

        batch = copied(delivery.batch, first)
        self._kept.append(_Kept(samples, batch, bool(shapes) and all(shape[:1] == (samples,) for shape in shapes)))

    def start(self, pull: Pull) -> None:
        if not self._kept:
            raise EngineFailed("its batches were given back; switch to synthetic again to keep new ones")
        super().start(pull)

    def receive(self) -> Delivery:
        slot = self._queue[0]
        samples = len(slot.indices)
        # Those that are long enough for this place, in turn; the longest where there is none.
        long = [kept for kept in self._kept if kept.samples >= samples]
        long = long or [max(self._kept, key=lambda kept: kept.samples)]
        kept = long[slot.number % len(long)]
        if kept.samples > samples and kept.cuttable:
            fresh = copied(
                kept.batch,
                lambda tensor: self._fresh(tensor[:samples]),
                lambda column: copy.deepcopy(column[:samples]),
                kept.samples,
            )
        else:
            fresh = copied(kept.batch, self._fresh)
        self._queue.popleft()
        self.pump()
        return Delivery(slot.number, np.asarray(slot.indices, dtype=np.int64), fresh, replaced=True)

    def release(self) -> None:
        super().release()
        self._kept.clear()

    def _fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._device, copy=True)


Change = Callable[[Any], Any]
_PLAIN = (str, bytes, int, float, bool, type(None))


def copied(batch: Any, tensor: Change, column: Change = copy.deepcopy, length: int = -1) -> Any:
    """Copy a batch, its nested dicts, lists, tuples and named tuples kept.

    `tensor` copies a tensor, `column` a list or tuple of `length` plain values, one for each sample, as
    `default_collate` leaves strings.
    """

    def inner(value: Any) -> Any:
        return copied(value, tensor, column, length)

    kind = type(batch)
    if isinstance(batch, torch.Tensor):
        return tensor(batch)
    if kind in (list, tuple) and len(batch) == length and all(type(value) in _PLAIN for value in batch):
        return column(batch)
    if kind is dict:
        return {key: inner(value) for key, value in batch.items()}
    if kind in (list, tuple):
        return kind(inner(value) for value in batch)
    if issubclass(kind, tuple) and hasattr(kind, "_make"):  # a named tuple has no other mark
        return kind._make(inner(value) for value in batch)
    return copy.deepcopy(batch)
