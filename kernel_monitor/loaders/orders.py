"""The orders of a loader's epochs, one after the other: drawn anew, or again where a state was loaded."""

from __future__ import annotations

import copy
import logging
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..errors import Refused
from ..integrations import accelerate
from ..integrations.distributed import set_sampler_epoch, shares_out
from . import random_streams
from .data.keyed_dataset import KeyedDataset
from .engines.torch_engine import PREFETCH
from .plan import Cursor, EpochRecord
from .resume import Origin, Resumption, draw, save

log = logging.getLogger(__name__)

LISTED = 32  # keys
_AT_ONCE = (DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass
class _Before:
    """How things were before an epoch began, to go back to if it delivers nothing."""

    newest: tuple[EpochRecord, Origin] | None
    next_epoch: int
    loaded: Resumption | None
    seed: int | None
    seed_given: bool
    answered: int  # batches of it that another iteration has delivered: more than 0 where it goes on from a state
    after: Origin | None = None  # the generators once the epoch had begun


class Orders:
    """Begins epochs, and saves the place in the newest; `seed` as `switchable` has it."""

    def __init__(self, loader: DataLoader[Any], keyed: KeyedDataset, seed: int | None) -> None:
        self.next_epoch = 0  # number
        self._loader = loader
        self._keyed = keyed
        self._seed_given = seed is not None
        self._seed = seed  # of the newest epoch; None before the first
        self._newest: tuple[EpochRecord, Origin] | None = None
        self._loaded: Resumption | None = None  # the next epoch to begin goes on from it
        self._before: _Before | None = None  # the newest epoch
        self._prepared: accelerate.Prepared | None = None
        self._is_early = accelerate.MODULE not in sys.modules  # made before accelerate was imported

    @property
    def seed(self) -> int:
        """The seed of the augmentation of the newest epoch."""
        return torch.initial_seed() if self._seed is None else self._seed

    @property
    def resumes(self) -> bool:
        """Whether the next epoch goes on from a state in its middle."""
        return self._loaded is not None and self._loaded.begun

    def order_as(self, make: accelerate.Prepare) -> None:
        """Have the samplers replaced and the epochs numbered by a framework; the first one counts."""
        if self._prepared is None:
            self._prepared = make(self._loader)

    def number_next(self) -> str | None:
        """Before an epoch begins, and the data set is looked at: let a framework number it.

        Returns a sentence where the loader may have been prepared without our knowledge.
        """
        if self._prepared is not None:
            self._prepared.number()
        elif self._is_early and accelerate.is_late(self._loader):
            self._is_early = False
            log.warning("%s", accelerate.LATE)
            return accelerate.LATE
        return None

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, here and in the samplers that take a number."""
        self.next_epoch = epoch
        if self._prepared is not None:
            self._prepared.set_epoch(epoch)
        for _, sampler in list(random_streams.samplers(self._loader))[:2]:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def begin(self, skipped: int = 0) -> tuple[Cursor, torch.Generator | None]:
        """Begin an epoch whose first `skipped` batches are drawn and not taken.

        Returns:
            Its plan, and a generator to seed new workers from; None where torch would make no workers.

        Raises:
            MonitorError: it is to go on from a state, and the sampler draws another order than it did, or batches are
                to be skipped as well. The state stays loaded.
        """
        loaded = self._loaded
        if skipped and loaded is not None and loaded.begun:
            raise Refused(
                "A state was loaded, from which the next iteration goes on, and batches are to be skipped as well: use "
                "one of the two (with Transformers' Trainer ignore_data_skip=True keeps the state)."
            )
        set_sampler_epoch(self._loader, self.next_epoch)
        if loaded is None:
            order = draw(self._loader, Origin.now(self._loader, kept=self._keeps_workers))
        else:
            order = loaded.begin(self._loader)
        resumed = loaded is not None and loaded.begun
        number = loaded.epoch if loaded is not None and resumed else self.next_epoch
        drawn = None if resumed or self._seed_given else order.base_seed
        seed = self.seed if drawn is None else drawn
        record = EpochRecord(number, *_lengths(self._loader), length=len(self._keyed))
        record.shared = shares_out(self._loader)
        prepared = self._prepared
        ahead = None if prepared is not None and prepared.draws_at_once else lookahead(self._loader)
        cursor = Cursor(order.batches, record, len(self._keyed), seed, ahead)
        if loaded is not None:
            loaded.replay(cursor)
        if skipped:
            cursor.replay(skipped, skipped)
            record.begin_after(skipped)
        self._before = _Before(self._newest, self.next_epoch, loaded, self._seed, self._seed_given, record.answered)
        self._seed = seed
        self._loaded, self._newest, self.next_epoch = None, (record, order.origin), number + 1
        if prepared is not None:
            prepared.begun(record, counts=not skipped)
        return cursor, order.seeding

    def begun(self) -> None:
        """The newest epoch has begun: whatever is drawn from now on may be the training's."""
        if self._before is not None:
            self._before.after = Origin.now(self._loader, kept=False)

    def undo(self, record: EpochRecord) -> bool:
        """Forget an epoch of which nothing was delivered, if it is the newest: the next one is numbered as it was.

        The generators are restored, too, unless others have drawn from them since. Returns whether it is forgotten.
        """
        before, newest = self._before, self._newest
        if before is None or newest is None or newest[0] is not record:
            return False
        if record.answered > before.answered or record.finished:
            return False
        if before.after is not None and before.after.same(Origin.now(self._loader, kept=False)):
            newest[1].rewind(self._loader)
            if before.loaded is None:  # what was drawn again was drawn apart
                newest[1].defaults.restore()
        self._newest, self.next_epoch, self._loaded = before.newest, before.next_epoch, before.loaded
        self._seed, self._seed_given, self._before = before.seed, before.seed_given, None
        return True

    def state(self) -> dict[str, Any]:
        """The state of the newest epoch, or of the next one where that has ended."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded.state)
        if self._newest is not None and not self._newest[0].finished:
            record, origin, begun = *self._newest, True
        else:
            if self._prepared is not None:
                self._prepared.number()
            origin = Origin.now(self._loader, kept=self._keeps_workers)
            record, begun = EpochRecord(self.next_epoch, None, None), False
        return save(self._loader, record, origin, self.seed, seed_given=self._seed_given, begun=begun)

    def load(self, state: dict[str, Any]) -> None:
        """Let the next epoch to begin go on from a state; an empty one forgets a state that was loaded before."""
        if state == {}:
            self._loaded = None
            return
        loaded = Resumption(state, self._loader)
        if self._prepared is not None:
            self._prepared.set_epoch(next(iter(loaded.origin.epochs.values()), loaded.epoch))
        loaded.origin.set_epochs(self._loader)
        set_sampler_epoch(self._loader, loaded.epoch, anew=True)
        self._loaded, self.next_epoch = loaded, loaded.epoch
        self._seed, self._seed_given = loaded.seed, loaded.seed_given

    @property
    def _keeps_workers(self) -> bool:
        """Whether torch would make no new workers for the next epoch."""
        return self._loader.persistent_workers and self._newest is not None


def lookahead(loader: DataLoader[Any]) -> int | None:
    """Return how many batches torch draws from the sampler before the first one is delivered; None: any number will do.

    A lazy sampler, or one that the training changes, gives other batches if it is asked earlier. Those that draw their
    whole order at once do not.
    """
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is BatchSampler and type(batch_sampler.sampler) in _AT_ONCE:
        sampler: Any = batch_sampler.sampler
        if type(sampler) is not RandomSampler or sampler.generator is None:
            return None
        # From the user's generator it draws again and again, unless one permutation is enough.
        if not sampler.replacement and sampler.num_samples <= len(sampler.data_source):
            return None
    return loader.num_workers * (loader.prefetch_factor or PREFETCH)


def listed_keys(loader: DataLoader[Any]) -> list[Any] | None:
    """The first keys of an order that is a list, where not all are indices; None where it is drawn, or all are."""
    batches: Any = loader.batch_sampler
    keys: list[Any] = []
    if type(batches) is BatchSampler and type(batches.sampler) in (list, tuple):
        keys = list(batches.sampler[:LISTED])  # type: ignore[index]
    elif type(batches) in (list, tuple):
        keys = [key for batch in batches[:LISTED] if type(batch) in (list, tuple) for key in batch][:LISTED]
    length = len(loader.dataset)  # type: ignore[arg-type]
    return None if all(type(key) is int and 0 <= key < length for key in keys) else keys


def _lengths(loader: DataLoader[Any]) -> tuple[int | None, int | None]:
    """Return how many batches and samples an epoch will have; None if the sampler has no length."""
    sampler = loader.batch_sampler
    try:
        batches = len(loader)
        samples = len(sampler.sampler) if type(sampler) is BatchSampler else 0  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - whatever the user's own sampler raises; plain torch would not ask
        return None, None
    if type(sampler) is not BatchSampler:
        return batches, None
    return batches, samples - samples % sampler.batch_size if sampler.drop_last else samples
