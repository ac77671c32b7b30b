"""Watch a model: its forward, backward and optimizer become phases of the steps that run them."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from .phases import watched

if TYPE_CHECKING:
    import torch

_lock = threading.RLock()  # a model may be collected, and its watch end, anywhere: also while this is held
_watches: dict[int, Watch] = {}  # by the id of the model, which lives


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Watch:
    """Measure how long a model's forward, backward and optimizer take in each step of the loops that run it.

    Watching the same model again returns the same watch, with that optimizer too. Neither is kept alive; the watch
    ends with the model. Nothing of the model changes: copies and pickled files of it are not watched.

    Args:
        model: what the loop calls: the compiled or wrapped one where there is one.
        optimizer: whose `step` is timed; left out, its time belongs to `other`.

    Raises:
        MonitorError: one of them is not torch's.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise MonitorError(
            f"watch() takes a torch.nn.Module, and {type(model).__name__} is none. "
            "Time what you call by hand: with monitor.phase('forward'): …"
        )
    if optimizer is not None:
        optimizer = _innermost(optimizer)
    with _lock:
        found = _watches.get(id(model))
        if found is None:
            found = _watches[id(model)] = Watch(model)
        else:
            found.look(model)
        if optimizer is not None:
            found.add(optimizer)
    return found


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that a framework has wrapped in its own (accelerate, Lightning), or the one given."""
    import torch

    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise MonitorError(
            f"watch() takes a torch.optim.Optimizer, and {type(optimizer).__name__} is none. "
            "Leave it out and time it by hand: with monitor.phase('optimizer'): …"
        )
    return optimizer


class Watch:
    """A watched model; made by `watch`. As a context manager it stops at the end."""

    def __init__(self, model: torch.nn.Module) -> None:
        from .hooks import Compiled, ForwardBegins, ForwardEnds, watch_backward

        self._key = id(model)
        self._process = os.getpid()
        self._model = weakref.ref(model, self._gone)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._handles = [
            model.register_forward_pre_hook(ForwardBegins(), prepend=True),
            model.register_forward_hook(ForwardEnds(), always_call=True),
        ]
        self._compiled = Compiled()
        self._compiled.put(model)
        self._running = True
        watched.changed(+1)
        watch_backward()

    @property
    def running(self) -> bool:
        """The model is alive and `stop` was not called."""
        return self._running

    def look(self, model: torch.nn.Module) -> None:
        """Take notice of what was done to the model since it was watched: `model.compile()`."""
        self._compiled.put(model)

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Time this optimizer's steps as well."""
        from .hooks import optimizer_begins, optimizer_ends

        with _lock:
            if optimizer in self._optimizers:
                return
            self._optimizers.add(optimizer)
            self._handles += [
                optimizer.register_step_pre_hook(optimizer_begins),
                optimizer.register_step_post_hook(optimizer_ends),
            ]

    def stop(self) -> None:
        """Measure no more; the model is as it was before."""
        with _lock:
            if not self._running:
                return
            self._running = False
            if _watches.get(self._key) is self:
                del _watches[self._key]
            for handle in self._handles:
                handle.remove()
            self._handles = []
            model = self._model()
            if model is not None:
                self._compiled.take(model)
            if os.getpid() != self._process:
                return
            watched.changed(-1)
            if not watched.models:
                from .hooks import let_go

                let_go()

    def _gone(self, _: Any) -> None:
        self.stop()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        model = self._model()
        return f"<Watch of {type(model).__name__}>" if self._running and model is not None else "<Watch, stopped>"
