"""The orders of a loader's epochs, one after the other: drawn anew, or again where a state was loaded."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from .data.keyed import KeyedDataset
from .plan import Cursor, EpochRecord
from .resume import Order, Origin, Resumption, save


class Orders:
    """Begins epochs, and says where the newest one has come to. Belongs to the thread that iterates.

    Args:
        loader: the user's.
        keyed: its data set; its seed is that of the augmentation.
    """

    def __init__(self, loader: DataLoader[Any], keyed: KeyedDataset) -> None:
        self.next_epoch = 0  # number
        self._loader = loader
        self._keyed = keyed
        self._newest: tuple[EpochRecord, Origin] | None = None
        self._loaded: Resumption | None = None  # the next epoch to begin goes on from it

    def begin(self) -> tuple[Cursor, torch.Generator | None]:
        """Begin an epoch.

        Returns:
            Its plan, and a generator to seed new workers from; None where torch would make no workers.

        Raises:
            MonitorError: it is to go on from a state, and the sampler draws another order than it did. The state
                stays loaded.
        """
        loaded = self._loaded
        order = Order.new(self._loader, kept=self._keeps_workers) if loaded is None else loaded.begin(self._loader)
        number = loaded.epoch if loaded is not None and loaded.begun else self.next_epoch
        record = EpochRecord(number, *_lengths(self._loader))
        cursor = Cursor(order.batches, record, len(self._keyed), self._keyed.seed)
        if loaded is not None:
            loaded.replay(cursor)
        self._loaded, self._newest, self.next_epoch = None, (record, order.origin), number + 1
        return cursor, order.seeding

    def state(self) -> dict[str, Any]:
        """The state of the newest epoch, or of the next one where that has ended."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded.state)
        if self._newest is not None and not self._newest[0].finished:
            return save(self._loader, *self._newest, self._keyed.seed, begun=True)
        origin = Origin.now(self._loader, kept=self._keeps_workers)
        return save(self._loader, EpochRecord(self.next_epoch, None, None), origin, self._keyed.seed, begun=False)

    def load(self, state: dict[str, Any]) -> None:
        """Let the next epoch to begin go on from a state; an empty one forgets a state that was loaded before.

        Raises:
            MonitorError: it is no state, or of another loader.
        """
        if state == {}:
            self._loaded = None
            return
        loaded = Resumption(state, self._loader)
        loaded.origin.tell_epochs(self._loader)
        self._loaded, self.next_epoch, self._keyed.seed = loaded, loaded.epoch, loaded.seed

    @property
    def _keeps_workers(self) -> bool:
        """Whether torch would make no new workers for the next epoch."""
        return self._loader.persistent_workers and self._newest is not None


def _lengths(loader: DataLoader[Any]) -> tuple[int | None, int | None]:
    """How many batches and samples an epoch will have; None where the sampler does not tell."""
    sampler = loader.batch_sampler
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError):
        return None, None
    if type(sampler) is not BatchSampler:
        return batches, None
    samples = len(sampler.sampler)  # type: ignore[arg-type]
    return batches, math.floor(samples / sampler.batch_size) * sampler.batch_size if sampler.drop_last else samples
