"""accelerate's functions that make a DataLoader anew, for a switchable loader: they hand on the loader itself.

`skip_first_batches`, which Transformers' Trainer calls to resume in the middle of an epoch, and `prepare_data_loader`
know DataLoaders only and build another one from the attributes of whatever they are given. Both are public functions,
and are replaced, wherever they were imported by name, by functions that look first whether the loader is switchable.
`Accelerator.prepare` leaves such a loader as it is by itself; it is replaced in its class, and so is the method that it
calls for each object, since `accelerator.prepare(switchable(…))` has looked `prepare` up before there is any loader.

What a DataLoader gets when it is prepared the loader gets as well, by accelerate's own function: a sampler that is
seeded, where accelerate is to use one, and numbers for its epochs (`Prepared`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from ..errors import MonitorError

MODULE = "accelerate.data_loader"
LATE = (
    "accelerate was imported after this loader was made: if it was prepared before its first use, its order is not the "
    "one that accelerate would draw; prepare it again, or make it after the import."
)

_METHODS = ("prepare", "_prepare_one")  # of Accelerator

View = Callable[[Any, Callable[[Any], Any]], Any]

_lock = threading.Lock()
_ours: set[Any] = set()  # the functions that are in the place of accelerate's


class Prepared:
    """The DataLoaderShard that accelerate makes of a loader's DataLoader: never iterated, it numbers the epochs.

    As there, an iteration that came to its end counts. One that was left does not, nor one of what
    `skip_first_batches` returned, which is a loader of its own to accelerate.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._newest: Any = None  # the record of the newest iteration, if it will count

    def number(self) -> None:
        """Number the epoch that begins next, before any of it is drawn."""
        newest, shard = self._newest, self._shard
        if newest is not None and newest.finished:
            shard.iteration += 1
            self._newest = None
        shard.set_epoch(shard.iteration)

    def set_epoch(self, epoch: int) -> None:
        """As of DataLoaderShard."""
        self.number()
        self._shard.set_epoch(epoch)

    def begun(self, record: Any, *, counts: bool) -> None:
        """An epoch begins; `record.finished` will tell whether it came to its end."""
        self._newest = record if counts else None

    @property
    def draws_at_once(self) -> bool:
        """Whether the whole order is drawn with the first batch, from a seed of its own."""
        from accelerate.data_loader import SeedableRandomSampler

        batches: Any = self._shard.batch_sampler
        sampler: Any = batches.sampler if type(batches) is BatchSampler else None
        if type(sampler) is not SeedableRandomSampler or sampler.replacement:
            return False
        return bool(sampler.num_samples <= len(sampler.data_source))


Prepare = Callable[[DataLoader[Any]], Prepared]


def serve(kinds: tuple[type[Any], ...], view: View) -> None:
    """Let accelerate's functions serve loaders of ours; cheap where they do already, or accelerate is not imported.

    `kinds` are classes of loaders that have `skip(batches)` and `order_as(make)`, which calls `make` once with the
    loader's DataLoader and follows the `Prepared` that it returns. `view` makes of such a loader and a function of a
    batch one that delivers what the function returns.
    """
    module = sys.modules.get(MODULE)
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    methods = {name: getattr(accelerator, name) for name in _METHODS if hasattr(accelerator, name)}
    if module is None or {getattr(module, "skip_first_batches", None), *methods.values()} <= _ours:
        return
    with _lock:
        for name, instead in (
            ("skip_first_batches", lambda given: given["dataloader"].skip(given["num_batches"])),
            ("prepare_data_loader", functools.partial(_prepare, view)),
        ):
            theirs = getattr(module, name, None)
            if inspect.isfunction(theirs) and theirs not in _ours:
                ours = _serving(theirs, kinds, instead)
                _ours.add(ours)
                _replace(theirs, ours)
        for name, theirs in methods.items():
            if theirs not in _ours:
                ours = _preparing(theirs, kinds)
                _ours.add(ours)
                setattr(accelerator, name, ours)


def is_late(loader: DataLoader[Any]) -> bool:
    """Whether a loader made before accelerate was imported may have been prepared, and its order have changed by it."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return bool(state is not None and state._shared_state) and isinstance(sampler, RandomSampler) and _ranks() == 1


def _serving(
    theirs: Callable[..., Any], kinds: tuple[type[Any], ...], instead: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    """A function that calls `instead` with the arguments by name where the loader is one of `kinds`."""
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def ours(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        return instead(given) if isinstance(given["dataloader"], kinds) else theirs(*args, **kwargs)

    return ours


def _preparing(theirs: Callable[..., Any], kinds: tuple[type[Any], ...]) -> Callable[..., Any]:
    """A method of Accelerator that first gives loaders of `kinds` their order; the rest is accelerate's."""

    @functools.wraps(theirs)
    def ours(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        for loader in args:
            if isinstance(loader, kinds):
                data_seed = getattr(accelerator.dataloader_config, "data_seed", None)
                _order(loader, use_seedable_sampler=accelerator.use_seedable_sampler, data_seed=data_seed)
        return theirs(accelerator, *args, **kwargs)

    return ours


def _order(loader: Any, **options: Any) -> None:
    """Let a loader follow the order that accelerate would give its DataLoader.

    Among several ranks it is shared out as `distributed` does it, and says so.
    """
    if _ranks() == 1:
        loader.order_as(functools.partial(_prepared, **options))


def _prepared(loader: DataLoader[Any], **options: Any) -> Prepared:
    """Let accelerate replace the sampler inside a DataLoader's batch sampler, as it does for any DataLoader."""
    from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader

    stand_in: DataLoader[Any] = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
    given = {name: value for name, value in options.items() if value is not None}
    shard: Any = prepare_data_loader(stand_in, num_processes=1, process_index=0, **given)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, SeedableRandomSampler) and sampler.generator is None:
        # It makes one when it is first iterated. A state would then have a generator that a new loader has not.
        sampler.generator = torch.Generator(torch.get_default_device())
    return Prepared(shard)


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _prepare(view: View, given: dict[str, Any]) -> Any:
    """The loader, or a view of it whose batches are sent to the device; a MonitorError for what it would not do."""
    ranks = _ranks()
    asked = given.get("num_processes")
    refused = {
        "for a device mesh": given.get("torch_device_mesh") is not None,
        "with dispatch_batches=True": given.get("dispatch_batches"),
        "with split_batches=True": given.get("split_batches") and ranks > 1,
        f"for {asked} processes where the process group has {ranks}": asked not in (None, ranks),
    }
    what = next((words for words, is_asked in refused.items() if is_asked), None)
    if what is not None:
        raise MonitorError(
            f"A switchable loader cannot be prepared {what}: give its DataLoader a DistributedSampler for the samples "
            "that this process is to get, and leave the loader out of prepare_data_loader()."
        )
    loader, device = given["dataloader"], given.get("device")
    _order(loader, use_seedable_sampler=given.get("use_seedable_sampler"), data_seed=given.get("data_seed"))
    if not given.get("put_on_device") or device is None or torch.device(device).type == "cpu":
        return loader
    from accelerate.utils import send_to_device

    send = functools.partial(send_to_device, device=device, non_blocking=given.get("non_blocking", False))
    return view(loader, send)


def _replace(theirs: Any, ours: Any) -> None:
    """Put a function in the place of another one in every module that has it, under whatever name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if value is theirs:
                    names[name] = ours
