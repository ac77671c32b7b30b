"""`switchable`: what it accepts, and what it refuses; and the living loaders, weakly held.

In a forked child there are none.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..errors import MonitorError, NotSwitchable
from ..os_process import in_forked_children
from ..steps.attached_loader import OWN, AttachedLoader
from ..steps.watched_loader import WatchedLoader
from ..text import cause, checked_text, log_outside
from . import events
from .data.file_source import examined
from .data.keyed_dataset import KeyedDataset
from .data.layouts import parts
from .engines.engine import setting
from .loader import FixedLoader, LoaderView, SwitchableLoader
from .orders import listed_keys

_ON_ERROR = ("raise", "skip")

log = logging.getLogger(__name__)

_lock = threading.Lock()
_live: weakref.WeakValueDictionary[str, SwitchableLoader] = weakref.WeakValueDictionary()
# A child's copies of the parent's loaders: kept, because to destroy them would end threads that it does not have.
_inherited: list[SwitchableLoader] = []

KEPT = "_kernel_monitor_engines"
"""The attribute of an attached DataLoader that keeps its switchable loader alive."""


def switchable(
    loader: DataLoader[Any] | SwitchableLoader | LoaderView,
    *,
    name: str | None = None,
    dali: Callable[..., Any] | None = None,
    seed: int | None = None,
    device: torch.device | str | int | None = None,
    on_error: str = "raise",
    shard: bool = True,
    dry_run: bool = True,
    seeded: bool = True,
) -> SwitchableLoader:
    """Wrap a DataLoader so that its engine can be swapped in the middle of an epoch.

    The order is the one that the DataLoader's own sampler draws (the same as torch's for the same seed); random
    crops and flips are a function of (seed, epoch, index, occurrence), and whatever else draws in the user's code is
    seeded likewise, so that no switch changes them. Workers start at the first iteration. docs/one-plan.md says what is
    guaranteed, and when a change of the data set is seen.

    Args:
        loader: over any map-style data set. The engines of DALI can serve torchvision's data sets of one image file
            per sample, data sets that follow `ImageFiles`, and those whose own `__getitem__` opens one image file and
            gives it to one transform (docs/howto/own-data.md); where they cannot, they say why. A loader that was
            returned from here before is returned again, as people run a cell twice: then only `name` has an effect.
        name: shown in the monitor, as one line of at most 80 letters; its id where none is given.
        dali: a pipeline of one's own, used by the `dali-*` backends instead of the translated transforms.
        seed: of the augmentation of every epoch. Where none is given, each iteration's is the number that torch draws
            at its beginning to seed workers: `torch.manual_seed` reproduces a run, and two loaders over one data set,
            or a loader that is made anew for each epoch, do not repeat each other.
        device: where `dali-gpu` decodes; the current CUDA device if one is usable, else the CPU.
        on_error: what to do with a file that cannot be read. "raise": a `SampleError` in the loop, the same on every
            engine. "skip": its batch comes without it, a batch of which nothing is left does not come at all;
            `loader.skipped()` lists what was left out and why. Errors of your own code are raised in any case.
        dry_run: whether a data set's own `__getitem__` may be called with an image that is not decoded, to find out
            what it does; False: its samples are only computed as it does, by `torchvision`.
        seeded: whether the random numbers that a data set's own `__getitem__` or `__getitems__`, its transforms and the
            collate function draw are the plan's; False: they are drawn as in the DataLoader itself, from generators
            that nobody seeds or restores. DALI's engines are then grey. For data sets that torchvision or `image_file`
            describe there is no such choice.
        shard: whether, in a process group of several ranks, each rank gets its share of what a plain shuffled or
            sequential sampler draws, as from a DistributedSampler. False: no rank's samples depend on its rank, for
            ranks that work on one batch together. See docs/interface.md. The group may be initialised later.

    Returns:
        The loader. Over an iterable-style data set, where there are no batches, and where its own classes raise when
        the loader is examined, its steps are only watched: `backends` says why no engine can be chosen, and `switch`
        raises that.

    Raises:
        NotSwitchable: (a MonitorError and a TypeError) it is no DataLoader.
        MonitorError: an argument has a value that there is not.
    """
    if on_error not in _ON_ERROR:
        raise MonitorError(f'switchable(on_error={on_error!r}): there are "raise" and "skip".')
    if dali is not None and not callable(dali):
        raise MonitorError(
            f"switchable(dali=…) takes a function that builds a DALI graph for one sample, not {type(dali).__name__}."
        )
    name = None if name is None else checked_text(name, "The name of a loader") or None
    known = _known(loader, name)
    if known is not None:
        return known
    _check(loader)
    wrapped = cast("DataLoader[Any]", loader)
    where = None if device is None else torch.device(device)
    try:
        reason = why_fixed(wrapped)
        if reason is None:
            return _made(wrapped, name, dali, seed, where, on_error, shard=shard, dry_run=dry_run, seeded=seeded)
    except MonitorError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        log_outside(log, "the loader cannot be examined; its steps are watched")
        reason = f"The loader cannot be examined ({cause(error)})."
    return cast("SwitchableLoader", FixedLoader(wrapped, name, reason))


def _made(
    loader: DataLoader[Any],
    name: str | None,
    dali: Callable[..., Any] | None,
    seed: int | None,
    device: torch.device | None,
    on_error: str,
    *,
    shard: bool,
    dry_run: bool,
    seeded: bool,
    attached: AttachedLoader | None = None,
    held: Any = None,
) -> SwitchableLoader:
    loader = copy.copy(loader)  # only ours may get another sampler
    for kept in ("_iterator", KEPT):  # workers and engines that the user's DataLoader keeps
        vars(loader).pop(kept, None)
    vars(loader)[OWN] = True
    if not seeded:
        _check_opaque(loader.dataset)
    # Asks for the length, too, which a plan needs.
    keys = listed_keys(loader)
    source, found = examined(loader.dataset, dry_run=dry_run, seeded=seeded, keys=keys, held=held)
    keyed = KeyedDataset(source, on_error)
    made = SwitchableLoader(setting(keyed, found, loader, device or _device(), dali), name, seed, shard, attached)
    if attached is None:
        with _lock:
            _live[made.id] = made  # complete: other threads may use it at once
    return made


def switchable_of_attached(attached: AttachedLoader, loader: DataLoader[Any], held: Any) -> SwitchableLoader:
    """Return a switchable loader for an attached DataLoader, with its id, name and steps.

    `held`: the copy of the data set that workers of an epoch under way have; None if there is none.
    """
    given: dict[str, Any] = {"shard": False, "dry_run": True, "seeded": True, "attached": attached, "held": held}
    return _made(loader, attached.name, None, None, None, "raise", **given)


def live() -> list[SwitchableLoader]:
    """Return every wrapped loader that is still in use, oldest first."""
    with _lock:
        return list(_live.values())


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - a lock is replaced, not a value
    _lock = threading.Lock()  # some other thread of the parent may have held it
    _inherited.extend(_live.values())
    _live.clear()
    events.forget()


def _known(loader: Any, name: str | None) -> SwitchableLoader | None:
    """A loader that was made here before, with its new name if it is given one; None for all others."""
    if not issubclass(type(loader), SwitchableLoader | LoaderView | FixedLoader):
        return None
    if name is not None:
        named = loader._kernel_monitor_source if type(loader) is FixedLoader else loader
        named.name = name
    return cast("SwitchableLoader", loader)


def _check(loader: Any) -> None:
    """Raise `NotSwitchable`, with the remedy, for what cannot be driven."""
    if isinstance(loader, DataLoader):
        return
    kind: Any = type(loader)
    refused = f"switchable() takes a torch.utils.data.DataLoader, not {kind.__name__}"
    if issubclass(kind, WatchedLoader):
        raise NotSwitchable(f"{refused}; give it the DataLoader itself instead of what watch_loader() made of it.")
    is_data = hasattr(kind, "__getitem__") and hasattr(kind, "__len__") and not issubclass(kind, IterableDataset)
    if is_data or not hasattr(kind, "__iter__"):
        raise NotSwitchable(f"{refused}; wrap your data set in a DataLoader first.")
    raise NotSwitchable(
        f"{refused}. kernel_monitor.watch_loader(loader) shows the steps of any iterable as it is. A DataLoader over "
        f"the same data could be switched, but it would be without what {kind.__name__} does itself: its order and "
        "shuffling, its collation, and what it does with a batch, such as moving it to a device."
    )


def why_fixed(loader: DataLoader[Any], *, attached: bool = False) -> str | None:
    """Return why a DataLoader's engine cannot be switched, a sentence; None where it can.

    An `attached` loader has called `DataLoader.__iter__`, which an engine replaces: a class whose own `__iter__` does
    more does that with the engine's batches.
    """
    if type(loader).__iter__ is not DataLoader.__iter__:
        reason = _obstacle_of_own_iter(loader, attached)
        if reason is not None:
            return reason
    if isinstance(loader.dataset, IterableDataset):
        return _obstacle_of_stream(loader.dataset)
    if not hasattr(type(loader.dataset), "__len__"):
        return f"{type(loader.dataset).__name__} has no length, so that there is no plan of its samples."
    if loader.batch_sampler is None:
        return "The DataLoader gives single samples (batch_size=None), and engines take over between two batches."
    return None


_NO_INDEX = (
    "The data set is iterable-style: its samples have no index, so that no other engine can take over between two of "
    "them."
)


def _obstacle_of_stream(dataset: Any) -> str:
    """Return why a loader over an iterable-style data set cannot be switched, a sentence."""
    kind: Any = type(dataset)
    if any(base.__module__.partition(".")[0] == "webdataset" for base in kind.__mro__):
        return f"{_NO_INDEX} kernel_monitor.TarShards(…) has the same samples with an index, and can be switched."
    mapped = f"{_NO_INDEX} A map-style data set, with __getitem__ and __len__, can be switched"
    if kind.__getitem__ is Dataset.__getitem__ or not hasattr(kind, "__len__"):
        return f"{mapped}."
    # As the StreamingDataset of MosaicML Streaming and of LitData.
    return f"{mapped}: {kind.__name__} has both, so that a Dataset around it will do, which returns its samples."


_ENDLESS = (
    "{0} takes all its epochs from one iterator that never ends, so that there is no boundary between epochs at which "
    "an engine could begin."
)
_OWN_ITERATION = {
    "timm": (
        f"{_ENDLESS} create_loader(…, use_multi_epochs_loader=False) makes a DataLoader that can be switched; with "
        "persistent_workers=True it keeps its workers, too."
    ),
    "ultralytics": (
        f"{_ENDLESS} What train() offers for a faster loader is workers=… for more processes, and cache='ram', which "
        "decodes each image once."
    ),
    "fastai": (
        "fastai's DataLoader lets each worker choose, compute and collate the samples, so that there is no order of "
        "samples to follow. A Learner also takes torch's own DataLoaders, which can be switched: "
        "DataLoaders(train_loader, valid_loader)."
    ),
    "torchdata": (
        "The state_dict() of {0} tells how far its own iterator has come, and would miss what another engine delivers. "
        "A plain DataLoader can be switched; of switchable(DataLoader(…)), state_dict() and load_state_dict() have the "
        "same use."
    ),
}
"""Why the loaders of some packages cannot be switched, and what to do instead; {0}: the name of the class."""


def _obstacle_of_own_iter(loader: Any, attached: bool) -> str | None:
    """Return why a loader whose class has an `__iter__` of its own cannot be switched, a sentence; None if it can."""
    for kind in type(loader).__mro__:
        reason = _OWN_ITERATION.get(kind.__module__.partition(".")[0]) if "__iter__" in vars(kind) else None
        if reason is not None:
            return reason.format(type(loader).__name__)
    if isinstance(loader.dataset, IterableDataset):
        return None  # that is said of it
    # A batch sampler without a length may never end: some such classes take all their epochs from one iterator.
    if attached and (loader.batch_sampler is None or hasattr(type(loader.batch_sampler), "__len__")):
        return None
    return (
        f"{type(loader).__name__} iterates in a way of its own, so that there is no order of samples to follow. "
        "A plain DataLoader over its data set can be switched."
    )


def _check_opaque(dataset: Any) -> None:
    """Raise MonitorError if not all samples are computed by a `__getitem__` of somebody's own."""
    known = [part for part, layout in parts(dataset) if layout is not None]
    if known:
        raise MonitorError(
            "switchable(seeded=False) is for data sets whose own __getitem__ computes the samples; those of "
            f"{type(known[0]).__name__} are transformed with the plan's random numbers on every engine. Leave it out."
        )


def _device() -> torch.device:
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    # Asking for the current device would make a CUDA context, and workers are forked yet.
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
