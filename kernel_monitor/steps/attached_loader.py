"""The entry of an attached DataLoader, and the protocols of the engines that may take over from it after a click."""

from __future__ import annotations

import importlib
import logging
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..text import log_outside
from . import loader_kinds
from .slow_samples import SampleTimes
from .watched_loader import Epoch, Source

if TYPE_CHECKING:
    from ..protocol.states import EpochCounts

OWN = "_kernel_monitor_own"
"""The attribute that marks what this package made for itself: DataLoaders, which are not measured, and hooks."""
_SAMPLERS = "torch.utils.data."  # the beginning of the module names of torch's own samplers
_ASKED = "_IterableDataset_len_called"  # where an iterable-style DataLoader keeps the length that it returned


class Rest(Protocol):
    """The rest of an epoch, which an engine delivers. Torch's iterator has it in place of its sampler."""

    def __next__(self) -> Any:
        """Take the next batch of indices from the sampler, keep it, and raise StopIteration."""

    def continue_epoch(self, epoch: Epoch, seed: int, asked: float) -> Iterator[Any]:
        """Return the engine's iterator over the rest.

        Args:
            epoch: the epoch, whose beginning torch's iterator has delivered.
            seed: of the augmentation.
            asked: the time at which the next batch was requested (s, `time.monotonic`).
        """

    def batches(self) -> Iterator[Any]:
        """Return the batches of indices that torch has not taken from the sampler."""


class Takeover(Protocol):
    """The engines of an attached loader, as `steps` knows them; see `loaders.takeover`. For the loop's thread only."""

    def begin(self) -> Callable[[], Any] | None:
        """Return a function that makes the iterator of an iteration that begins; None if torch is to make it.

        What that function raises, plain torch would raise, too.
        """

    def hand_over(self, iterator: Any) -> Rest | None:
        """Return the rest of the epoch if an engine is to deliver it, else None; called between two batches."""

    def renew(self) -> None:
        """Note that the DataLoader was made anew; keep the chosen engine and the knobs."""

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first."""


class AttachedLoader(Source):
    """The entry of a DataLoader that this process iterates, or of several that a function makes anew for each epoch.

    Attributes:
        takeover: its engines; None before `kernel_monitor.loaders` asks for them.
        of_torch: whether torch's own `__iter__` makes the iterators; only there an engine can begin.
        iterator: a weak reference to the iterator of the newest epoch, torch's or an engine's.
        samples: the times of the samples that torch's iterators compute.
    """

    def __init__(self, name: str, loader: Any) -> None:
        self.takeover: Takeover | None = None
        self.of_torch = True
        self.iterator: weakref.ref[Any] | None = None
        self.samples = SampleTimes()
        self._loader = weakref.ref(loader)
        self._batch_size: int | None = None  # of the newest epoch's batches; None: they may have several
        super().__init__(name)

    @property
    def loader(self) -> Any:
        """The DataLoader of the newest epoch; None if it is gone."""
        return self._loader()

    def replace_loader(self, loader: Any) -> None:
        """Use this DataLoader, which was made anew, from the next epoch on."""
        self._loader = weakref.ref(loader)
        if self.takeover is not None:
            self.takeover.renew()

    def begin(self, skipped: int = 0) -> Epoch:
        """Begin and return an epoch; `skipped` batches of it came before, if it resumes from a saved state."""
        batches, planned = _lengths(self.loader)
        if skipped:
            samples = loader_kinds.samples_of(self.loader, skipped)
            planned = None if planned is None or samples is None else max(0, planned - samples)
            batches = None if batches is None else max(0, batches - skipped)
        self._length, self._batch_size = batches, loader_kinds.batch_size(self.loader)
        return self.log.begin(planned)

    def samples_of(self, epoch: Epoch, batch: Any) -> int:
        """Return the number of samples in the next batch of an epoch: of its indices, as engines count them.

        What a `collate_fn` makes of the samples may have any form.
        """
        left = 0 if epoch.planned is None else epoch.planned - epoch.samples
        return (
            super().samples_of(epoch, batch) if self._batch_size is None or left <= 0 else min(self._batch_size, left)
        )

    @property
    def under_way(self) -> bool:
        """Whether its newest iteration has begun and not ended."""
        if self.iterator is None or self.iterator() is None:
            return False
        counts = self.log.counts() if self.takeover is None else self.takeover.epochs()
        return bool(counts) and not counts[-1]["finished"]

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers of torch's own iterator."""
        iterator = None if self.iterator is None else self.iterator()
        return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid is not None]


def _lengths(loader: Any) -> tuple[int | None, int | None]:
    """Return the numbers of batches and of samples of an epoch; None: not known.

    Asking for them must not change what the loop gets. A user's sampler may draw its batches to count them, so the
    default generators are restored. An iterable-style DataLoader warns if more batches come than the length that it
    returned, so that is forgotten again.
    """
    if loader is None:
        return None, None
    if loader_kinds.of_fastai(loader) is not None:
        return loader_kinds.lengths(loader)
    batches = loader.batch_sampler
    torchs_own = all(type(one).__module__.startswith(_SAMPLERS) for one in (loader.sampler, batches) if one is not None)
    restore = [] if torchs_own else _states()
    asked = vars(loader).get(_ASKED, None)
    try:
        return loader_kinds.lengths(loader)
    finally:
        for put, state in restore:
            put(state)
        if _ASKED in vars(loader):
            vars(loader)[_ASKED] = asked


def _states() -> list[tuple[Callable[[Any], object], Any]]:
    """Return a pair for each default generator of the process: the function that restores it, and its state now."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy.random")
    states = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if numpy is not None:
        states.append((numpy.set_state, numpy.get_state()))
    return states


def import_loaders() -> None:
    """Import the engines, which a click needs, before workers are forked: a fork during an import might deadlock."""
    try:
        importlib.import_module("kernel_monitor.loaders")
    except Exception:  # noqa: BLE001 - such as torchvision and torch of versions that do not match; the loop goes on
        log_outside(
            logging.getLogger(__name__),
            "DataLoaders are measured, but cannot be switched until this package is repaired",
        )
