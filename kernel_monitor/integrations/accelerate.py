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

    Args:
        kinds: classes of loaders that have `skip(batches)`.
        view: of such a loader and a function of a batch, makes one that delivers what the function returns.
    """
    module = sys.modules.get(MODULE)
    if module is None or getattr(module, "skip_first_batches", None) in _ours:
        return
    with _lock:
        for name, make in (("skip_first_batches", _skipping), ("prepare_data_loader", _preparing)):
            theirs = getattr(module, name, None)
            if inspect.isfunction(theirs) and theirs not in _ours:
                ours = make(theirs, kinds, view)
                _ours.add(ours)
                _replace(theirs, ours)


def _skipping(theirs: Callable[..., Any], kinds: tuple[type[Any], ...], _: View) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def skip_first_batches(*args: Any, **kwargs: Any) -> Any:
        given = _given(theirs, args, kwargs)
        loader: Any = given["dataloader"]
        if isinstance(loader, kinds):
            return loader.skip(given["num_batches"])
        return theirs(*args, **kwargs)

    return skip_first_batches


def _preparing(theirs: Callable[..., Any], kinds: tuple[type[Any], ...], view: View) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def prepare_data_loader(*args: Any, **kwargs: Any) -> Any:
        given = _given(theirs, args, kwargs)
        loader, device = given["dataloader"], given.get("device")
        if not isinstance(loader, kinds):
            return theirs(*args, **kwargs)
        _check(given)
        if not given.get("put_on_device") or device is None or torch.device(device).type == "cpu":
            return loader
        from accelerate.utils import send_to_device

        return view(
            loader, functools.partial(send_to_device, device=device, non_blocking=given.get("non_blocking", False))
        )

    return prepare_data_loader


def _check(given: dict[str, Any]) -> None:
    """Refuse what a switchable loader would not do.

    Raises:
        MonitorError: naming the argument.
    """
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    asked = given.get("num_processes")
    if given.get("torch_device_mesh") is not None:
        what = "for a device mesh"
    elif given.get("dispatch_batches"):
        what = "with dispatch_batches=True"
    elif given.get("split_batches") and ranks > 1:
        what = "with split_batches=True"
    elif asked is not None and asked != ranks:
        what = f"for {asked} processes where the process group has {ranks}"
    else:
        return
    raise MonitorError(
        f"A switchable loader cannot be prepared {what}: give its DataLoader a DistributedSampler for the samples that "
        "this process is to get, and leave the loader out of prepare_data_loader()."
    )


def _given(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included.

    Raises:
        TypeError: as the call itself would.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _replace(theirs: Any, ours: Any) -> None:
    """Put a function in the place of another one in every module that has it, under whatever name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            for name, value in list(names.items()):
                if value is theirs:
                    names[name] = ours
