"""Torch's own iterators: the data set as their workers hold it, and iterators whose batches an engine delivers."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from typing import Any

from . import loader_kinds
from .attached_loader import OWN

log = logging.getLogger(__name__)

HELD = "_kernel_monitor_held"
"""The attribute of an iterator that has the data set as its workers got it; see `loaders.data.fingerprint.Held`."""
copy_of: Callable[[Any], Any] | None = None
"""Makes that from a data set, in 0.1 to 0.3 s for a million samples; None until the engines are imported."""
_CONTEXT = "_DataLoader__multiprocessing_context"
_GIVEN_TO_ITERATOR = ("collate_fn", "num_workers", "prefetch_factor")  # what torch's iterator copies


def hold(iterator: Any, loader: Any) -> None:
    """Note the data set that an iterator's workers get now; if they run already, as it is when they are first seen."""
    try:
        if copy_of is not None and loader.num_workers and HELD not in vars(iterator):
            switchable = not loader_kinds.is_iterable(loader) and loader_kinds.of_fastai(loader) is None
            vars(iterator)[HELD] = copy_of(loader.dataset) if switchable else None
    except Exception:
        log.exception("a fault in kernel_monitor: the data set of workers is not known")


def held(iterator: Any) -> Any:
    """Return the data set as an iterator's workers got it; None if it has none, or if this is not known."""
    return getattr(iterator, "__dict__", {}).get(HELD)


def kept(loader: Any) -> Any:
    """Return the iterator that a DataLoader keeps for all its epochs; None if it keeps none, or before the first."""
    keeps = loader is not None and loader.persistent_workers and loader.num_workers > 0
    return getattr(loader, "_iterator", None) if keeps else None


def settings(loader: Any) -> dict[str, Any]:
    """Return a DataLoader's assignable attributes; what its persistent workers have replaces later assignments."""
    found = {name: value for name, value in vars(loader).items() if not name.startswith("_") or name == _CONTEXT}
    values = {name: getattr(kept(loader), f"_{name}", None) for name in _GIVEN_TO_ITERATOR}
    return found | {name: value for name, value in values.items() if value is not None}


def without_workers(loader: Any, seed: int | None) -> Any:
    """Return an iterator as torch makes it for an epoch, but without workers, without a draw, and at its end.

    `seed`: the number that was drawn at the epoch's beginning to seed workers.
    """
    module: Any = sys.modules[loader_kinds.TORCH]
    torch = sys.modules["torch"]
    alike = copy.copy(loader)
    vars(alike).update({OWN: True, "batch_sampler": (), "generator": torch.Generator(), "pin_memory": False})
    if loader.num_workers == 0:
        iterator = module._SingleProcessDataLoaderIter(alike)
    else:
        iterator = object.__new__(module._MultiProcessingDataLoaderIter)
        iterator._shutdown, iterator._worker_pids_set, iterator._workers = True, False, []
        module._BaseDataLoaderIter.__init__(iterator, alike)
        iterator._prefetch_factor, iterator._in_order = loader.prefetch_factor, getattr(loader, "in_order", True)
        iterator._worker_init_fn, iterator._index_queues = loader.worker_init_fn, []
        iterator._send_idx = iterator._rcvd_idx = iterator._tasks_outstanding = 0
        iterator._task_info = {}
    iterator._index_sampler, iterator._base_seed = loader.batch_sampler, seed
    iterator._pin_memory = loader.pin_memory and torch.accelerator.is_available()
    return iterator
