"""Watches of models: their forward, backward and optimizer become phases of the steps that run them.

Forward is timed by the module's hooks, the optimizer by its step hooks. Backward is timed by a wrapper of
`torch.autograd.backward`, which `Tensor.backward` calls (full backward hooks would forbid some in-place operations, and
do not see the end). Copies are timed by wrappers of `Tensor.to` and `Tensor.cuda`, once a watched model runs on a GPU.
`torch.jit.script` and `torch.cuda.make_graphed_callables` do not meet our hooks, which they would refuse. Torch has its
own functions while nothing is watched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any

import torch

from ..errors import MonitorError
from . import phase_times
from .phase_times import BACKWARD, COPY, FORWARD, OPTIMIZER, ThreadPhases, thread_phases, watched_models

_compiling = torch.compiler.is_compiling
_lock = threading.RLock()  # reentrant: a model may be collected, and its watch end, while this is held
_watches: dict[int, ModelWatch] = {}  # by the id of the living model


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ModelWatch:
    """See `kernel_monitor.steps.watch`. A call of it ends all automatic watches."""
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
        found.is_automatic = False
        stop_automatic_watches()
        found.time_compiled(model)
        if optimizer is not None:
            found.add(optimizer)
    return found


def watch_automatically(model: torch.nn.Module) -> None:
    """Watch a model without a call of `watch`, unless it is watched."""
    with _lock:
        if id(model) not in _watches:
            found = _watches[id(model)] = ModelWatch(model, is_automatic=True)
            found.time_compiled(model)


def stop_automatic_watches() -> None:
    """End the watches that `watch_automatically` began."""
    with _lock:
        for found in [found for found in _watches.values() if found.is_automatic]:
            found.stop()


def user_watches() -> bool:
    """Return whether a model is watched because the user's code asks for it."""
    return any(not found.is_automatic for found in list(_watches.values()))


def begin_timing() -> None:
    """Time each call of `torch.autograd.backward` until `end_timing` was called as often as this."""
    watched_models.change(+1)
    _BACKWARD.install()
    for function in _REFUSE_HOOKS:
        function.install()


def end_timing() -> None:
    """Undo one call of `begin_timing`; after the last one torch has its own functions."""
    watched_models.change(-1)
    if not watched_models.count:
        for function in (_BACKWARD, *_REFUSE_HOOKS, *_COPIES):
            function.remove()


def compiled_in_place(model: torch.nn.Module) -> bool:
    """Return whether `model.compile()` was called."""
    return _compiled_call(model) is not None


def _innermost(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer inside a framework's wrapper (accelerate, Lightning), or the argument itself."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise MonitorError(
            f"watch() takes a torch.optim.Optimizer, and {type(optimizer).__name__} is none. "
            "Leave it out and time it by hand: with monitor.phase('optimizer'): …"
        )
    return optimizer


class ModelWatch:
    """A watch of a model, made by `watch`; as a context manager it stops at the end of the block."""

    def __init__(self, model: torch.nn.Module, *, is_automatic: bool = False) -> None:
        self.is_automatic = is_automatic  # `watch_automatically` began it
        self._key = id(model)
        self._process = os.getpid()

        def gone(_: object, python_ends: Callable[[], bool] = sys.is_finalizing) -> None:
            if not python_ends():  # a script's model lives until then, when this module's globals are gone
                self.stop()

        self._model = weakref.ref(model, gone)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._handles: list[Any] = []
        # A module that was compiled in place is compiled once more where it gets hooks; `time_compiled` times it, too.
        if not (is_automatic and compiled_in_place(model)):
            self._handles.append(model.register_forward_pre_hook(_ForwardBegins(), prepend=True))
            try:
                self._handles.append(model.register_forward_hook(_ForwardEnds(), always_call=True))
            except BaseException:
                self._handles.pop().remove()
                raise
        self._compiled: Any = None
        self.running = True  # the model lives and `stop` was not called
        begin_timing()

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, while it lives."""
        return self._model()

    def time_compiled(self, model: torch.nn.Module) -> None:
        """Time the call of a module that was compiled in place (`model.compile()`), which runs no hooks."""
        original = _compiled_call(model)
        if original is not None and original is not self._compiled:
            self._compiled = model._compiled_call_impl = _timed_call(original, weakref.ref(model))

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Time this optimizer's steps, too."""
        with _lock:
            if optimizer in self._optimizers:
                return
            self._optimizers.add(optimizer)
            self._handles += [
                optimizer.register_step_pre_hook(_optimizer_begins),
                optimizer.register_step_post_hook(_optimizer_ends),
            ]

    def stop(self) -> None:
        """Stop to measure; the model is as it was before."""
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
            end_timing()

    def __enter__(self) -> ModelWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        model = self._model()
        return f"<Watch of {type(model).__name__}>" if self.running and model is not None else "<Watch, stopped>"


def _compiled_call(model: torch.nn.Module) -> Any:
    """Return the function by which `model.compile()` replaced the call, or None; copies of the model do not have it."""
    return vars(model).get("_compiled_call_impl")


class _Hook:
    """A hook that has no effect in copies and pickles of its module."""

    def __reduce__(self) -> Any:
        # This function takes any arguments and returns None; it can be unpickled without this package.
        return getattr, (contextlib.nullcontext(), "__exit__")


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, _Hook)


class _ForwardBegins(_Hook):
    def __call__(self, module: Any, *_: Any) -> None:
        if not _compiling() and watched_models.count:
            _forward_begins(module, sys._getframe(1).f_code)


class _ForwardEnds(_Hook):
    """The hook after a forward; it is called even if the forward raised."""

    def __call__(self, *_: Any) -> None:
        if not _compiling() and watched_models.count:
            thread_phases().leave(FORWARD)


def _forward_begins(module: Any, code: CodeType | None = None) -> None:
    """Begin the phase of a watched module's forward; if it is on a GPU, time its thread's next steps there."""
    phases = thread_phases()
    if phases.on_device or phase_times.gpu_in_use():
        time_on_gpu(phases, module.parameters())
    phases.enter(FORWARD, code)


def time_on_gpu(phases: ThreadPhases, parameters: Iterator[torch.Tensor]) -> None:
    """Time a thread's next steps on the GPU if the first of these parameters is there."""
    if not phases.on_device:
        first = next(parameters, None)
        if first is not None and phase_times.is_on_gpu(first):
            phase_times.use_cuda()
            phases.on_device = True
    if phases.on_device:
        for function in _COPIES:
            function.install()


def _optimizer_begins(*_: Any) -> None:
    if not _compiling() and watched_models.count:
        thread_phases().enter(OPTIMIZER, sys._getframe(1).f_code)


def _optimizer_ends(*_: Any) -> None:
    """End the optimizer's phase; torch does not call this hook if the step raises."""
    if not _compiling() and watched_models.count:
        thread_phases().leave(OPTIMIZER)


def _timed_call(original: Callable[..., Any], module_of: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or not watched_models.count:
            return original(*args, **kwargs)
        _forward_begins(module_of())
        try:
            return original(*args, **kwargs)
        finally:
            thread_phases().leave(FORWARD)

    return call


class _Replaced:
    """A function of torch that is replaced by a wrapper while models are watched.

    If others have wrapped our wrapper meanwhile, it cannot be removed: it stays and only passes calls on.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name
        self._own = name in vars(owner)  # else it is inherited
        self._ours: Any = None

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that is to stand in the place of the original."""
        raise NotImplementedError

    def install(self) -> None:
        """Replace the function by the wrapper."""
        if self._ours is None:
            self._ours = self.wrapper(getattr(self._owner, self._name))
            setattr(self._owner, self._name, self._ours)

    def remove(self) -> None:
        """Restore the function, if our wrapper is still in its place."""
        if self._ours is None or vars(self._owner).get(self._name) is not self._ours:
            return
        if self._own:
            setattr(self._owner, self._name, self._ours.__wrapped__)
        else:
            delattr(self._owner, self._name)
        self._ours = None


class _Timed(_Replaced):
    """A function of torch whose calls are phases."""

    def __init__(self, owner: Any, name: str, kind: int, counts: Callable[..., bool] | None = None) -> None:
        super().__init__(owner, name)
        self._kind = kind
        self._counts = counts  # returns whether a call with these arguments is a phase; None: each is

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        kind, counts = self._kind, self._counts

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _compiling() or not watched_models.count or not (counts is None or counts(*args, **kwargs)):
                return original(*args, **kwargs)
            phases = thread_phases()
            phases.enter(kind)
            try:
                return original(*args, **kwargs)
            finally:
                phases.leave(kind)

        return call


class _WithoutHooks(_Replaced):
    """A function of torch that refuses modules with hooks, or compiles their hooks: it does not meet ours."""

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _lock:
                models = [model for found in _watches.values() if (model := found.model) is not None]
            every = [hooks for model in models for hooks in (model._forward_pre_hooks, model._forward_hooks)]
            hidden = [(hooks, list(hooks.items())) for hooks in every if any(map(_is_ours, hooks.values()))]
            for hooks, items in hidden:
                for key, hook in items:
                    if _is_ours(hook):
                        del hooks[key]
            try:
                return original(*args, **kwargs)
            finally:
                for hooks, items in hidden:  # in their order
                    more = [(key, hook) for key, hook in hooks.items() if (key, hook) not in items]
                    hooks.clear()
                    hooks.update([*items, *more])

        return call


def _copied(tensor: Any, /, *_: Any, **__: Any) -> bool:
    """Return whether `tensor.cuda(…)` copies to the GPU outside of other phases."""
    return not phase_times.is_on_gpu(tensor) and thread_phases().idle


def _copied_to(tensor: Any, /, *args: Any, **kwargs: Any) -> bool:
    """Return whether `tensor.to(…)` copies to the GPU outside of other phases."""
    target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
    return phase_times.is_gpu_target(target) and _copied(tensor)


_BACKWARD = _Timed(torch.autograd, "backward", BACKWARD)
_COPIES = (_Timed(torch.Tensor, "to", COPY, _copied_to), _Timed(torch.Tensor, "cuda", COPY, _copied))
_REFUSE_HOOKS = (  # the first is what `torch.jit.script` lists a module's hooks with
    _WithoutHooks(torch.jit._recursive, "get_hook_stubs"),
    _WithoutHooks(torch.cuda, "make_graphed_callables"),
)
