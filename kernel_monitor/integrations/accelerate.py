"""accelerate's functions that make a DataLoader anew, for a switchable loader: they hand on the loader itself.

`skip_first_batches`, which Transformers' Trainer calls to resume in the middle of an epoch, and `prepare_data_loader`
know DataLoaders only and build another one from the attributes of whatever they are given. Both are public functions,
and are replaced, wherever they were imported by name, by functions that look first whether the loader is switchable.
`Accelerator.prepare` leaves such a loader as it is by itself.
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

from ..errors import MonitorError

MODULE = "accelerate.data_loader"

View = Callable[[Any, Callable[[Any], Any]], Any]

_lock = threading.Lock()
_ours: set[Any] = set()  # the functions that are in the place of accelerate's


def serve(kinds: tuple[type[Any], ...], view: View) -> None:
    """Let accelerate's functions serve loaders of ours; cheap where they do already, or accelerate is not imported.

    `kinds` are classes of loaders that have `skip(batches)`. `view` makes of such a loader and a function of a batch
    one that delivers what the function returns.
    """
    module = sys.modules.get(MODULE)
    if module is None or getattr(module, "skip_first_batches", None) in _ours:
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


def _prepare(view: View, given: dict[str, Any]) -> Any:
    """The loader, or a view of it whose batches are sent to the device; a MonitorError for what it would not do."""
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
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
