"""Watch a model: its forward, backward and optimizer become phases of the steps that run them.

Forward: the module's hooks. Optimizer: its step hooks. Backward: `torch.autograd.backward`, through which
`Tensor.backward` goes (full backward hooks would change what may be done in place, and see no end). Copy: `Tensor.to`
and `Tensor.cuda`, once a watched model is met on a GPU. Nothing of torch is wrapped while nothing is watched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

import torch

from ..errors import MonitorError
from . import cuda_times
from .phases import BACKWARD, COPY, FORWARD, OPTIMIZER, thread_phases, watched

_compiling = torch.compiler.is_compiling
_lock = threading.RLock()  # a model may be collected, and its watch end, anywhere: also while this is held
_watches: dict[int, ModelWatch] = {}  # by the id of the model, which lives


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ModelWatch:
    """See `kernel_monitor.steps.watch`."""
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
            found = _watches[id(model)] = ModelWatch(model)
        found.time_compiled(model)
        if optimizer is not None:
            found.add(optimizer)
    return found


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that a framework has wrapped in its own (accelerate, Lightning), or the one given."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise MonitorError(
            f"watch() takes a torch.optim.Optimizer, and {type(optimizer).__name__} is none. "
            "Leave it out and time it by hand: with monitor.phase('optimizer'): …"
        )
    return optimizer


class ModelWatch:
    """A watched model; made by `watch`. As a context manager it stops at the end."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._key = id(model)
        self._process = os.getpid()

        def gone(_: object, python_ends: Callable[[], bool] = sys.is_finalizing) -> None:
            if not python_ends():  # a model of a script lives until then, when this module's globals are gone
                self.stop()

        self._model = weakref.ref(model, gone)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._handles = [
            model.register_forward_pre_hook(_ForwardBegins(), prepend=True),
            model.register_forward_hook(_ForwardEnds(), always_call=True),
        ]
        self._compiled: Any = None
        self.running = True  # the model is alive and `stop` was not called
        watched.changed(+1)
        _BACKWARD.put()

    def time_compiled(self, model: torch.nn.Module) -> None:
        """Time the call of a module that was compiled in place (`model.compile()`), which runs no hook of ours."""
        original = _compiled_call(model)
        if original is not None and original is not self._compiled:
            self._compiled = model._compiled_call_impl = _timed_call(original, weakref.ref(model))

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Time this optimizer's steps as well."""
        with _lock:
            if optimizer in self._optimizers:
                return
            self._optimizers.add(optimizer)
            self._handles += [
                optimizer.register_step_pre_hook(_optimizer_begins),
                optimizer.register_step_post_hook(_optimizer_ends),
            ]

    def stop(self) -> None:
        """Measure no more; the model is as it was before."""
        with _lock:
            if not self.running:
                return
            self.running = False
            if _watches.get(self._key) is self:
                del _watches[self._key]
            for handle in self._handles:
                handle.remove()
            self._handles = []
            model = self._model()
            if model is not None and self._compiled is not None and _compiled_call(model) is self._compiled:
                model._compiled_call_impl = self._compiled.__wrapped__
            if os.getpid() != self._process:
                return
            watched.changed(-1)
            if not watched.models:
                for function in (_BACKWARD, *_COPIES):
                    function.take()

    def __enter__(self) -> ModelWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        model = self._model()
        return f"<Watch of {type(model).__name__}>" if self.running and model is not None else "<Watch, stopped>"


def _compiled_call(model: torch.nn.Module) -> Any:
    """Return the function by which `model.compile()` replaced the call, which copies of the model lose; or None."""
    return vars(model).get("_compiled_call_impl")


class _Hook:
    """A hook that stays behind, without effect, where its module is copied or pickled."""

    def __reduce__(self) -> Any:
        # Takes any arguments and returns None; the module can be unpickled without this package.
        return getattr, (contextlib.nullcontext(), "__exit__")


class _ForwardBegins(_Hook):
    def __call__(self, module: Any, *_: Any) -> None:
        if not _compiling() and watched.models:
            _forward_begins(module, sys._getframe(1).f_code)


class _ForwardEnds(_Hook):
    """Called even if the forward has raised."""

    def __call__(self, *_: Any) -> None:
        if not _compiling() and watched.models:
            thread_phases().leave(FORWARD)


def _forward_begins(module: Any, code: CodeType | None = None) -> None:
    """A watched module's forward begins; on a GPU its thread's steps are timed there from the next one on."""
    phases = thread_phases()
    if not phases.on_device and cuda_times.possible():
        first = next(module.parameters(), None)
        if first is not None and cuda_times.holds(first):
            cuda_times.use_cuda()
            phases.on_device = True
    if phases.on_device:
        for function in _COPIES:
            function.put()
    phases.enter(FORWARD, code)


def _optimizer_begins(*_: Any) -> None:
    if not _compiling() and watched.models:
        thread_phases().enter(OPTIMIZER, sys._getframe(1).f_code)


def _optimizer_ends(*_: Any) -> None:
    """Not called when the step raises."""
    if not _compiling() and watched.models:
        thread_phases().leave(OPTIMIZER)


def _timed_call(original: Callable[..., Any], module_of: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or not watched.models:
            return original(*args, **kwargs)
        _forward_begins(module_of())
        try:
            return original(*args, **kwargs)
        finally:
            thread_phases().leave(FORWARD)

    return call


class _Wrapped:
    """A function of torch that is replaced while anything is watched, and whose calls are then a phase.

    If our function has been wrapped meanwhile it cannot be removed: then it stays, and only passes calls on.
    """

    def __init__(self, owner: Any, name: str, kind: int, counts: Callable[..., bool]) -> None:
        self._owner = owner
        self._name = name
        self._kind = kind
        self._counts = counts  # of a call's arguments, whether it is a phase
        self._own = name in vars(owner)  # or inherited
        self._ours: Any = None

    def put(self) -> None:
        if self._ours is not None:
            return
        original, kind, counts = getattr(self._owner, self._name), self._kind, self._counts

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _compiling() or not watched.models or not counts(*args, **kwargs):
                return original(*args, **kwargs)
            phases = thread_phases()
            phases.enter(kind)
            try:
                return original(*args, **kwargs)
            finally:
                phases.leave(kind)

        self._ours = call
        setattr(self._owner, self._name, call)

    def take(self) -> None:
        if self._ours is None or vars(self._owner).get(self._name) is not self._ours:
            return
        if self._own:
            setattr(self._owner, self._name, self._ours.__wrapped__)
        else:
            delattr(self._owner, self._name)
        self._ours = None


def _copied(tensor: Any, /, *_: Any, **__: Any) -> bool:
    """Return whether `tensor.cuda(…)` is a copy to the GPU that is not part of another phase."""
    return not cuda_times.holds(tensor) and thread_phases().idle


def _copied_to(tensor: Any, /, *args: Any, **kwargs: Any) -> bool:
    """The same of `tensor.to(…)`."""
    target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    return cuda_times.means(target) and _copied(tensor)


_BACKWARD = _Wrapped(torch.autograd, "backward", BACKWARD, lambda *_, **__: True)
_COPIES = (_Wrapped(torch.Tensor, "to", COPY, _copied_to), _Wrapped(torch.Tensor, "cuda", COPY, _copied))
