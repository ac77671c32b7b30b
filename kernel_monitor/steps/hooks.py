"""Where the phases of a watched model begin and end: torch's own hooks, and three functions that are wrapped meanwhile.

Forward: the module's hooks. Optimizer: its step hooks. Backward: `torch.autograd.backward`, through which
`Tensor.backward` goes (full backward hooks would change what may be done in place, and see no end). Copy: `Tensor.to`
and `Tensor.cuda`, once a watched model is met on a GPU. Nothing is wrapped while nothing is watched.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from . import cuda_times
from .phases import BACKWARD, COPY, FORWARD, OPTIMIZER, thread_phases, watched

_compiling = torch.compiler.is_compiling


class Hook:
    """A hook that stays behind, without effect, where its module is copied or pickled."""

    def __reduce__(self) -> Any:
        # Takes any arguments and returns None; the module can be unpickled without this package.
        return getattr, (contextlib.nullcontext(), "__exit__")


def begins(module: Any, code: CodeType | None = None) -> None:
    """A watched module's forward begins; on a GPU its thread's steps are timed there from the next one on."""
    phases = thread_phases()
    if not phases.on_device and cuda_times.possible():
        first = next(module.parameters(), None)
        if first is not None and cuda_times.holds(first):
            cuda_times.use_cuda()
            phases.on_device = True
    if phases.on_device:
        watch_copies()
    phases.enter(FORWARD, code)


class ForwardBegins(Hook):
    """Before a watched module's forward."""

    def __call__(self, module: Any, *_: Any) -> None:
        if not _compiling() and watched.models:
            begins(module, sys._getframe(1).f_code)


class ForwardEnds(Hook):
    """After it, or once it has raised."""

    def __call__(self, *_: Any) -> None:
        if not _compiling() and watched.models:
            thread_phases().leave(FORWARD)


def optimizer_begins(*_: Any) -> None:
    """Before an optimizer's step."""
    if not _compiling() and watched.models:
        thread_phases().enter(OPTIMIZER, sys._getframe(1).f_code)


def optimizer_ends(*_: Any) -> None:
    """After it; not called when it raises."""
    if not _compiling() and watched.models:
        thread_phases().leave(OPTIMIZER)


class Compiled:
    """The call of a module that was compiled in place, which runs no hook of ours; copies of the module lose it."""

    def __init__(self) -> None:
        self._original: Any = None
        self._ours: Any = None

    def put(self, module: Any) -> None:
        """Time the compiled call, where there is one."""
        original = module.__dict__.get("_compiled_call_impl")
        if original is None or original is self._ours:
            return

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _compiling() or not watched.models:
                return original(*args, **kwargs)
            begins(module_of())
            try:
                return original(*args, **kwargs)
            finally:
                thread_phases().leave(FORWARD)

        module_of = weakref.ref(module)
        self._original, self._ours = original, call
        module._compiled_call_impl = call

    def take(self, module: Any) -> None:
        """Put the compiled call back."""
        if self._ours is not None and module.__dict__.get("_compiled_call_impl") is self._ours:
            module._compiled_call_impl = self._original
        self._ours = None


class Wrapped:
    """A function of torch that is replaced while anything is watched.

    If our function has been wrapped meanwhile it cannot be removed: then it stays, and only passes calls on.
    """

    def __init__(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner = owner
        self._name = name
        self._around = around
        self._own = name in vars(owner)  # or inherited
        self._original: Any = None
        self._ours: Any = None

    def put(self) -> None:
        if self._ours is None:
            self._original = getattr(self._owner, self._name)
            self._ours = self._around(self._original)
            setattr(self._owner, self._name, self._ours)

    def take(self) -> None:
        if self._ours is None or vars(self._owner).get(self._name) is not self._ours:
            return
        if self._own:
            setattr(self._owner, self._name, self._original)
        else:
            delattr(self._owner, self._name)
        self._ours = None


def _around_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or not watched.models:
            return original(*args, **kwargs)
        phases = thread_phases()
        phases.enter(BACKWARD)
        try:
            return original(*args, **kwargs)
        finally:
            phases.leave(BACKWARD)

    return backward


def _around_to(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or not watched.models or cuda_times.holds(self):
            return original(self, *args, **kwargs)
        target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
        return _copy(self, original, args, kwargs) if cuda_times.means(target) else original(self, *args, **kwargs)

    return to


def _around_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling() or not watched.models or cuda_times.holds(self):
            return original(self, *args, **kwargs)
        return _copy(self, original, args, kwargs)

    return cuda


def _copy(tensor: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor's way to the GPU, as a phase where it is not part of another one."""
    phases = thread_phases()
    if not phases.idle:
        return original(tensor, *args, **kwargs)
    phases.enter(COPY)
    try:
        return original(tensor, *args, **kwargs)
    finally:
        phases.leave(COPY)


_backward = Wrapped(torch.autograd, "backward", _around_backward)
_copies = (Wrapped(torch.Tensor, "to", _around_to), Wrapped(torch.Tensor, "cuda", _around_cuda))


def watch_backward() -> None:
    """See every backward pass from here on."""
    _backward.put()


def watch_copies() -> None:
    """See every copy from the host to a GPU from here on."""
    for function in _copies:
        function.put()


def let_go() -> None:
    """Put torch's own functions back."""
    for function in (_backward, *_copies):
        function.take()
