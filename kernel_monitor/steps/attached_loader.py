"""The entry of a plain DataLoader that is measured, and what its engines are to it after a click."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from . import loader_kinds
from .watched_loader import Epoch, Source

if TYPE_CHECKING:
    from ..protocol.states import EpochCounts

OWN = "_kernel_monitor_own"
"""The attribute of what this package made for itself: a DataLoader, which is not attached to; a hook on all modules."""
_SAMPLERS = "torch.utils.data."  # the module of torch's own samplers begins so
_ASKED = "_IterableDataset_len_called"  # of an iterable-style DataLoader: the length that it has told


class Rest(Protocol):
    """The rest of an epoch that an engine takes over. Torch's iterator has it as its sampler, which gives no more."""

    def __next__(self) -> Any:
        """Draw what torch would draw now, keep it, and raise StopIteration."""

    def go_on(self, epoch: Epoch, seed: int, asked: float) -> Iterator[Any]:
        """Return the iterator over the rest.

        Args:
            epoch: torch's iterator has delivered its beginning.
            seed: of the augmentation.
            asked: when the next batch was asked for (s, monotonic).
        """

    def batches(self) -> Iterator[Any]:
        """Return what the sampler has still to give."""


class Takeover(Protocol):
    """The engines' side of an attached loader; see `loaders.takeover`. Only the loop's thread calls these."""

    def begin(self) -> Callable[[], Any] | None:
        """An iteration begins: return what makes the iterator in torch's place; None where torch's own is to iterate.

        What that raises, plain torch would raise, too.
        """

    def hand_over(self, iterator: Any) -> Rest | None:
        """Between two batches: return the rest of the epoch for an engine; None while torch's iterator is to go on."""

    def renew(self) -> None:
        """The DataLoader was made anew: keep the choice of an engine."""

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first."""


class AttachedLoader(Source):
    """A plain DataLoader that this process iterates, or several that a function makes anew, one for each epoch.

    Attributes:
        takeover: what goes on in torch's place after a click; None before `kernel_monitor.loaders` is imported.
        of_torch: whether torch's own `__iter__` makes the iterators, which is where an engine can begin.
    """

    def __init__(self, name: str, loader: Any) -> None:
        self.takeover: Takeover | None = None
        self.of_torch = True
        self.iterator: weakref.ref[Any] | None = None  # torch's, or what is in its place, of the newest epoch
        self._loader = weakref.ref(loader)
        super().__init__(name)

    @property
    def loader(self) -> Any:
        """The DataLoader of the newest epoch; None if it is gone."""
        return self._loader()

    def follow(self, loader: Any) -> None:
        """The next epoch is one of this DataLoader."""
        self._loader = weakref.ref(loader)
        if self.takeover is not None:
            self.takeover.renew()

    def begin(self, skipped: int = 0) -> Epoch:
        """Begin and return an epoch, after that many batches of it where it goes on from a state."""
        batches, planned = _lengths(self.loader)
        if skipped:
            samples = loader_kinds.samples_of(self.loader, skipped)
            planned = None if planned is None or samples is None else max(0, planned - samples)
            batches = None if batches is None else max(0, batches - skipped)
        self._length = batches
        return self.log.begin(planned)

    @property
    def under_way(self) -> bool:
        """Whether its newest iteration has not come to its end."""
        if self.iterator is None or self.iterator() is None:
            return False
        counts = self.log.counts() if self.takeover is None else self.takeover.epochs()
        return bool(counts) and not counts[-1]["finished"]

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of the workers of torch's own iterator."""
        iterator = None if self.iterator is None else self.iterator()
        return [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.pid is not None]


def _lengths(loader: Any) -> tuple[int | None, int | None]:
    """Return the batches and the samples of an epoch; None: not known. What the loop then gets does not change by it.

    A user's sampler may draw its batches to count them. An iterable-style DataLoader that was asked for its length
    warns where more comes.
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
    """Return the states of the process's default generators, each after the function that restores it."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy.random")
    states = [(torch.set_rng_state, torch.get_rng_state()), (random.setstate, random.getstate())]
    if numpy is not None:
        states.append((numpy.set_state, numpy.get_state()))
    return states
