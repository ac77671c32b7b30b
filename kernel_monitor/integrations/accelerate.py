"""Wrappers of the accelerate functions that rebuild a DataLoader; they return a switchable loader itself.

`skip_first_batches`, which Transformers' Trainer calls to resume in the middle of an epoch, and `prepare_data_loader`
build a new DataLoader from the attributes of their argument. Wherever these functions were imported by name, wrappers
replace them, which first check whether the loader is switchable. `Accelerator.prepare` leaves such a loader unchanged,
but has to set its order: it is wrapped in its class, and so is the method that it calls for each object, because
`accelerator.prepare(switchable(…))` looks up `prepare` before there is any loader.

accelerate's own function then gives the loader what it gives a prepared DataLoader: a seeded sampler, if accelerate is
configured to use it, and numbers for its epochs (`Prepared`).
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

_METHODS = ("prepare", "_prepare_one")  # methods of Accelerator

View = Callable[[Any, Callable[[Any], Any]], Any]

_lock = threading.Lock()
_wrappers: set[Any] = set()  # the functions that replace accelerate's


class Prepared:
    """The DataLoaderShard that accelerate makes of a loader's DataLoader; it is never iterated and numbers the epochs.

    As in accelerate, an iteration counts as an epoch if it came to its end, except an iteration over the result of
    `skip_first_batches`, which accelerate treats as a different loader.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._newest: Any = None  # the record of the newest iteration, if that can count

    def number(self) -> None:
        """Number the epoch that begins next, before any of it is drawn."""
        newest, shard = self._newest, self._shard
        if newest is not None and newest.finished:
            shard.iteration += 1
            self._newest = None
        shard.set_epoch(shard.iteration)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, as `DataLoaderShard.set_epoch` does."""
        self.number()
        self._shard.set_epoch(epoch)

    def begun(self, record: Any, *, counts: bool) -> None:
        """Note that an iteration begins; it counts as an epoch if `counts`, and if `record.finished` is set later."""
        self._newest = record if counts else None

    @property
    def draws_at_once(self) -> bool:
        """Whether the sampler draws the whole order with the first batch, from its own seed."""
        from accelerate.data_loader import SeedableRandomSampler

        batches: Any = self._shard.batch_sampler
        sampler: Any = batches.sampler if type(batches) is BatchSampler else None
        if type(sampler) is not SeedableRandomSampler or sampler.replacement:
            return False
        return bool(sampler.num_samples <= len(sampler.data_source))


Prepare = Callable[[DataLoader[Any]], Prepared]


def serve(kinds: tuple[type[Any], ...], view: View) -> None:
    """Wrap accelerate's functions, so that they accept our loaders; cheap if that is done or accelerate not imported.

    Args:
        kinds: classes of loaders that have `skip(batches)` and `order_as(make)`, which calls `make` once with the
            loader's DataLoader and follows the `Prepared` that it returns.
        view: called with such a loader and a function of a batch; returns a loader of the function's results.
    """
    module = sys.modules.get(MODULE)
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    methods = {name: getattr(accelerator, name) for name in _METHODS if hasattr(accelerator, name)}
    if module is None or {getattr(module, "skip_first_batches", None), *methods.values()} <= _wrappers:
        return
    with _lock:
        for name, replacement in (
            ("skip_first_batches", lambda arguments: arguments["dataloader"].skip(arguments["num_batches"])),
            ("prepare_data_loader", functools.partial(_prepare, view)),
        ):
            original = getattr(module, name, None)
            if inspect.isfunction(original) and original not in _wrappers:
                wrapper = _wrapped_function(original, kinds, replacement)
                _wrappers.add(wrapper)
                _replace(original, wrapper)
        for name, original in methods.items():
            if original not in _wrappers:
                wrapper = _wrapped_method(original, kinds)
                _wrappers.add(wrapper)
                setattr(accelerator, name, wrapper)


def is_late(loader: DataLoader[Any]) -> bool:
    """Return whether accelerate may have prepared, and reordered, a loader that was made before it was imported."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return bool(state is not None and state._shared_state) and isinstance(sampler, RandomSampler) and _ranks() == 1


def _wrapped_function(
    original: Callable[..., Any], kinds: tuple[type[Any], ...], replacement: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Return a function that calls `replacement` with the arguments by name if the loader is one of `kinds`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if isinstance(bound.arguments["dataloader"], kinds):
            return replacement(bound.arguments)
        return original(*args, **kwargs)

    return wrapper


def _wrapped_method(original: Callable[..., Any], kinds: tuple[type[Any], ...]) -> Callable[..., Any]:
    """Return a method of Accelerator that sets the order of loaders of `kinds`, then calls the original."""

    @functools.wraps(original)
    def wrapper(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        for loader in args:
            if isinstance(loader, kinds):
                data_seed = getattr(accelerator.dataloader_config, "data_seed", None)
                _order(loader, use_seedable_sampler=accelerator.use_seedable_sampler, data_seed=data_seed)
        return original(accelerator, *args, **kwargs)

    return wrapper


def _order(loader: Any, **options: Any) -> None:
    """Let a loader follow the order that accelerate would give its DataLoader.

    With several ranks, `distributed` shares out the samples instead.
    """
    if _ranks() == 1:
        loader.order_as(functools.partial(_prepared, **options))


def _prepared(loader: DataLoader[Any], **options: Any) -> Prepared:
    """Let accelerate replace the sampler inside a DataLoader's batch sampler, as it does with any DataLoader."""
    from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader

    stand_in: DataLoader[Any] = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
    options = {name: value for name, value in options.items() if value is not None}
    shard: Any = prepare_data_loader(stand_in, num_processes=1, process_index=0, **options)
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, SeedableRandomSampler) and sampler.generator is None:
        # It would make one at its first iteration; a saved state would then have a generator that a new loader lacks.
        sampler.generator = torch.Generator(torch.get_default_device())
    return Prepared(shard)


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _prepare(view: View, arguments: dict[str, Any]) -> Any:
    """Prepare a loader: return it, or a view of it that sends the batches to the device.

    Args:
        view: see `serve`.
        arguments: those of `prepare_data_loader`, by name.

    Raises:
        MonitorError: an argument has no counterpart in a switchable loader.
    """
    ranks = _ranks()
    processes = arguments.get("num_processes")
    refused = {
        "for a device mesh": arguments.get("torch_device_mesh") is not None,
        "with dispatch_batches=True": arguments.get("dispatch_batches"),
        "with split_batches=True": arguments.get("split_batches") and ranks > 1,
        f"for {processes} processes where the process group has {ranks}": processes not in (None, ranks),
    }
    option = next((words for words, is_set in refused.items() if is_set), None)
    if option is not None:
        raise MonitorError(
            f"A switchable loader cannot be prepared {option}: give its DataLoader a DistributedSampler for the "
            "samples that this process is to get, and leave the loader out of prepare_data_loader()."
        )
    loader, device = arguments["dataloader"], arguments.get("device")
    _order(loader, use_seedable_sampler=arguments.get("use_seedable_sampler"), data_seed=arguments.get("data_seed"))
    if not arguments.get("put_on_device") or device is None or torch.device(device).type == "cpu":
        return loader
    from accelerate.utils import send_to_device

    send = functools.partial(send_to_device, device=device, non_blocking=arguments.get("non_blocking", False))
    return view(loader, send)


def _replace(original: Any, wrapper: Any) -> None:
    """Replace a function in every module that has it, under any name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if value is original:
                    names[name] = wrapper
