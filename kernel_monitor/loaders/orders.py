"""The orders of a loader's epochs: each is newly drawn, or drawn again after a state was loaded."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
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
from ..steps.watched_loader import Epoch
from . import random_streams
from .data.keyed_dataset import KeyedDataset
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import PREFETCH
from .plan import Cursor, EpochRecord
from .random_streams import Defaults
from .resume import Origin, Resumption, draw, save

log = logging.getLogger(__name__)

LISTED = 32  # the most keys that `listed_keys` returns
_AT_ONCE = (DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass
class _Before:
    """The state of `Orders` before an epoch began, which is restored if the epoch delivers nothing."""

    newest: tuple[EpochRecord, Origin] | None
    next_epoch: int
    loaded: Resumption | None
    seed: int | None
    seed_given: bool
    answered: int  # batches of the epoch that an earlier iteration has delivered; above 0 only after a loaded state
    after: Origin | None = None  # the generators just after the epoch's beginning


class Orders:
    """The epochs of a loader: it begins them and saves the position in the newest.

    Args:
        loader: its samplers draw the orders.
        keyed: its data set.
        seed: that of `switchable`.
        rewinds: whether the generators are restored after an epoch that delivered nothing; plain torch does not.
    """

    def __init__(self, loader: DataLoader[Any], keyed: KeyedDataset, seed: int | None, *, rewinds: bool = True) -> None:
        self.next_epoch = 0  # number
        self.workers_kept = False  # whether torch's own iterator has persistent workers already
        self._rewinds = rewinds
        self._loader = loader
        self._keyed = keyed
        self._seed_given = seed is not None
        self._seed = seed  # the seed of the newest epoch; None before the first
        self._newest: tuple[EpochRecord, Origin] | None = None
        self._loaded: Resumption | None = None  # a loaded state, from which the next epoch goes on
        self._before: _Before | None = None  # the state before the newest epoch
        self._prepared: accelerate.Prepared | None = None
        self._is_early = accelerate.MODULE not in sys.modules  # this was made before accelerate was imported

    @property
    def seed(self) -> int:
        """The seed of the augmentation of the newest epoch."""
        return torch.initial_seed() if self._seed is None else self._seed

    @property
    def resumes(self) -> bool:
        """Whether the next epoch goes on from a state that was saved in the middle of an epoch."""
        return self._loaded is not None and self._loaded.begun

    def order_as(self, make: accelerate.Prepare) -> None:
        """Let a framework replace the samplers and number the epochs; later calls do nothing."""
        if self._prepared is None:
            self._prepared = make(self._loader)

    def number_next(self) -> str | None:
        """Let a framework number the next epoch; to be called before it begins and before the data set is read.

        Returns a sentence for the user if accelerate may have prepared the loader without our knowledge, else None.
        """
        if self._prepared is not None:
            self._prepared.number()
        elif self._is_early and accelerate.is_late(self._loader):
            self._is_early = False
            log.warning("%s", accelerate.LATE)
            return accelerate.LATE
        return None

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, here and in the samplers that have `set_epoch`."""
        self.next_epoch = epoch
        if self._prepared is not None:
            self._prepared.set_epoch(epoch)
        for _, sampler in list(random_streams.samplers(self._loader))[:2]:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def begin(self, skipped: int = 0) -> tuple[Cursor, torch.Generator | None]:
        """Begin an epoch whose first `skipped` batches are drawn and not taken.

        Returns:
            The epoch's plan, and a generator for the seeds of new workers; None if torch would start no workers.

        Raises:
            MonitorError: a state was loaded, and the sampler draws another order than before, or batches are to be
                skipped, too. The state stays loaded.
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

    def continue_epoch(self, batches: Iterator[Any], epoch: Epoch, seed: int) -> Cursor:
        """Return a cursor over the rest of an epoch, whose beginning torch's own iterator has delivered.

        Args:
            batches: the batches of indices that torch has not taken from the sampler.
            epoch: its number, and the numbers of batches and samples that were delivered.
            seed: of the augmentation of the rest.
        """
        record = EpochRecord(epoch.number, *_lengths(self._loader), length=len(self._keyed))
        whole = chain(repeat([], epoch.batches), batches)
        cursor = Cursor(whole, record, len(self._keyed), seed, lookahead(self._loader))
        cursor.replay(epoch.batches, epoch.batches)  # their indices are not known: empty batches take their places
        record.answered = record.batches = epoch.batches
        record.samples = record.before = epoch.samples
        record.decoded[TORCHVISION] = epoch.samples
        self._seed, self._before = seed, None
        self._newest, self.next_epoch = (record, Origin.now(self._loader, kept=True)), epoch.number + 1
        return cursor

    def begun(self) -> None:
        """Note that the newest epoch has begun: from now on the training, too, may draw random numbers."""
        if self._before is not None:
            self._before.after = Origin.now(self._loader, kept=False)

    def undo(self, record: EpochRecord) -> bool:
        """Undo the beginning of an epoch that delivered nothing, if it is the newest; return whether it was undone.

        The next epoch gets its number. The generators are restored, too, unless other code has drawn from them since.
        """
        before, newest = self._before, self._newest
        if before is None or newest is None or newest[0] is not record:
            return False
        if record.answered > before.answered or record.finished:
            return False
        if self._rewinds and before.after is not None and before.after.same(Origin.now(self._loader, kept=False)):
            newest[1].rewind(self._loader)
            if before.loaded is None:  # else the order was drawn again, from generators of its own
                newest[1].defaults.restore()
        self._newest, self.next_epoch, self._loaded = before.newest, before.next_epoch, before.loaded
        self._seed, self._seed_given, self._before = before.seed, before.seed_given, None
        return True

    def state(self) -> dict[str, Any]:
        """Return the state of the newest epoch, or of the next epoch if that has ended."""
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
        """Load a state from which the next epoch goes on; an empty state removes a state that was loaded before."""
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
        """Whether torch would keep its workers for the next epoch."""
        return self._loader.persistent_workers and (self._newest is not None or self.workers_kept)


def lookahead(loader: DataLoader[Any]) -> int | None:
    """Return how many batches torch draws from the sampler before it delivers the first; None: any number will do.

    A lazy sampler, or a sampler that the training changes, yields other batches if they are drawn earlier. A sampler
    that draws its whole order at once does not.
    """
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is BatchSampler and type(batch_sampler.sampler) in _AT_ONCE:
        sampler: Any = batch_sampler.sampler
        if type(sampler) is not RandomSampler or sampler.generator is None:
            return None
        # It draws from the user's generator several times, unless one permutation is enough.
        if not sampler.replacement and sampler.num_samples <= len(sampler.data_source):
            return None
    return loader.num_workers * (loader.prefetch_factor or PREFETCH)


def listed_keys(loader: DataLoader[Any]) -> list[Any] | None:
    """Return the first keys of an order that is a list; None if the order is drawn, or if all keys are indices."""
    batches: Any = loader.batch_sampler
    keys: list[Any] = []
    if type(batches) is BatchSampler and type(batches.sampler) in (list, tuple):
        keys = list(batches.sampler[:LISTED])  # type: ignore[index]
    elif type(batches) in (list, tuple):
        keys = [key for batch in batches[:LISTED] if type(batch) in (list, tuple) for key in batch][:LISTED]
    length = len(loader.dataset)  # type: ignore[arg-type]
    return None if all(type(key) is int and 0 <= key < length for key in keys) else keys


def _lengths(loader: DataLoader[Any]) -> tuple[int | None, int | None]:
    """Return the numbers of batches and samples of an epoch; None for those that the sampler's length does not give."""
    sampler: Any = loader.batch_sampler
    before = None if type(sampler) is BatchSampler and type(sampler.sampler) in _AT_ONCE else Defaults.now()
    try:
        batches = len(loader)
        samples = len(sampler.sampler) if type(sampler) is BatchSampler else 0  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the user's own sampler may raise anything; plain torch would not call `len`
        return None, None
    finally:
        if before is not None:
            before.restore()  # a sampler may draw its batches to count them
    if type(sampler) is not BatchSampler:
        return batches, None
    return batches, samples - samples % sampler.batch_size if sampler.drop_last else samples
