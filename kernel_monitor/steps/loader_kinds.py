"""The kinds of loaders that iterate in another way than a plain DataLoader, recognised without an import of theirs."""

from __future__ import annotations

import sys
from typing import Any

from . import watched_loader

TORCH = "torch.utils.data.dataloader"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def stateful_class() -> Any:
    """Return torchdata's StatefulDataLoader; None before it is imported."""
    return getattr(sys.modules.get(_STATEFUL), "StatefulDataLoader", None)


def makes_iterators(loader: Any) -> bool:
    """Return whether each epoch of a loader has an iterator of its own, as torch's have, and torchdata's."""
    known = (sys.modules[TORCH].DataLoader, stateful_class())
    return any(kind is not None and type(loader).__iter__ is kind.__iter__ for kind in known)


def keeps(loader: Any, iterator: Any) -> bool:
    """Return whether a loader holds its iterator: an iterator that holds its loader would be in a cycle."""
    return bool(loader.persistent_workers) or any(value is iterator for value in vars(loader).values())


def of_fastai(loader: Any) -> Any:
    """Return fastai's DataLoader, none of torch's, of what that gives to torch's iterators; None of other loaders."""
    kind = type(loader)
    return loader.d if kind.__name__ == "_FakeLoader" and kind.__module__ == "fastai.data.load" else None


def lengths(loader: Any) -> tuple[int | None, int | None]:
    """Return the batches and the samples of an epoch; None: not known."""
    outer = of_fastai(loader)
    if outer is None:
        return watched_loader.length(loader), watched_loader.planned(loader)
    batches, samples, size = watched_loader.length(outer), outer.n, outer.bs
    return batches, None if None in (batches, samples, size) else min(samples, batches * size)


def samples_of(loader: Any, batches: int) -> int | None:
    """Return the samples of that many full batches; None: not known."""
    size = getattr(loader, "batch_size", None)
    return batches * size if isinstance(size, int) else None
