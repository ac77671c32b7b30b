"""Loaders that iterate in another way than a plain DataLoader; their packages are not imported to recognise them."""

from __future__ import annotations

import sys
from typing import Any

from . import watched_loader

TORCH = "torch.utils.data.dataloader"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def stateful_class() -> Any:
    """Return torchdata's StatefulDataLoader; None before it is imported."""
    return getattr(sys.modules.get(_STATEFUL), "StatefulDataLoader", None)


def stateful_workers_class() -> Any:
    """Return the class of its iterators that have workers; None where there is none."""
    return getattr(sys.modules.get(_STATEFUL), "_StatefulMultiProcessingDataLoaderIter", None)


def makes_iterators(loader: Any) -> bool:
    """Return whether a loader makes an iterator for each epoch, as those of torch and of torchdata do."""
    known = (sys.modules[TORCH].DataLoader, stateful_class())
    return any(kind is not None and type(loader).__iter__ is kind.__iter__ for kind in known)


def keeps(loader: Any, iterator: Any) -> bool:
    """Return whether a loader refers to its iterator, so that a reference back would make a cycle."""
    return bool(loader.persistent_workers) or any(value is iterator for value in vars(loader).values())


def of_fastai(loader: Any) -> Any:
    """Return fastai's own DataLoader behind the object that it gives to torch's iterators; None for other loaders."""
    kind = type(loader)
    return loader.d if kind.__name__ == "_FakeLoader" and kind.__module__ == "fastai.data.load" else None


def is_iterable(loader: Any) -> bool:
    """Return whether the data set of one of torch's loaders is iterable-style."""
    return of_fastai(loader) is None and isinstance(loader.dataset, sys.modules[TORCH].IterableDataset)


def lengths(loader: Any) -> tuple[int | None, int | None]:
    """Return the numbers of batches and of samples of an epoch; None: not known."""
    outer = of_fastai(loader)
    if outer is None:
        return watched_loader.length(loader), watched_loader.planned(loader)
    batches, samples, size = watched_loader.length(outer), outer.n, outer.bs
    return batches, None if None in (batches, samples, size) else min(samples, batches * size)


def batch_size(loader: Any) -> int | None:
    """Return the number of samples in each batch but the last, if torch's own sampler of batches makes them."""
    kind = type(getattr(loader, "batch_sampler", None))
    if kind.__name__ != "BatchSampler" or not kind.__module__.startswith("torch.utils.data.") or of_fastai(loader):
        return None
    size = loader.batch_sampler.batch_size
    return size if isinstance(size, int) else None


def samples_of(loader: Any, batches: int) -> int | None:
    """Return the number of samples in that many full batches; None: not known."""
    size = getattr(loader, "batch_size", None)
    return batches * size if isinstance(size, int) else None
