"""Phases of steps without a call of `monitor.watch`: the models that the measured loops train are found and watched.

The steps of all optimizers are timed by hooks that torch offers for that. The optimizer's parameters then show which of
the modules that a loop calls is its model. The search runs once for each optimizer, from its first step to its next
one. (Hooks on all modules from then on would slow each call of a submodule: by 1.8 µs, which
for the 151 modules of a ResNet-50 is 1.4 % of a step of 20 ms.)
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..os_process import in_forked_children
from . import boundary, model_watch, phase_times
from .attached_loader import OWN
from .phase_times import OPTIMIZER, thread_phases

log = logging.getLogger(__name__)

_compiling = torch.compiler.is_compiling
_STEP_FILE = register_optimizer_step_pre_hook.__code__.co_filename  # the file in which torch calls our hooks
_FRAMES = 60  # innermost frames of the stack whose global variables are searched for compiled models
_MOST_MODULES = 8  # watched for one optimizer; a loop that calls more of them calls its model's layers itself
_MOST_CALLS = 20_000  # calls of modules after which a search ends
_NO_HOOKS = (torch.jit.ScriptModule, torch.nn.TransformerEncoderLayer)
"""Modules that accept no hooks, or compute differently with them: torch has a fast path for layers without hooks."""
_MOST_SEARCHES = 16  # at a time: some code makes an optimizer for each parameter
_COVERED = 0.9  # least share of the optimizer's parameters that the modules found must own


class _Search:
    """A search, among the next calls of a thread, for the modules that own an optimizer's parameters."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.asked = thread_phases().asked  # batches that the thread had requested when the search began
        self._thread = threading.get_ident()
        self._missing = {id(parameter): parameter.numel() for parameter in parameters}
        self._all = sum(self._missing.values())
        self._known: set[int] = set()  # ids of the modules looked at and of their submodules
        self._found: list[weakref.ref[torch.nn.Module]] = []
        self._calls = 0
        self._handle = register_module_forward_pre_hook(self._on_call)

    def end(self) -> None:
        """Remove the hook on all modules."""
        self._handle.remove()

    def result(self) -> list[torch.nn.Module]:
        """End the search; return the modules found, or an empty list if it is not certain that the loop trains them."""
        self.end()
        found = [module for reference in self._found if (module := reference()) is not None]
        unsure = (
            len(found) > _MOST_MODULES
            or sum(self._missing.values()) > (1 - _COVERED) * self._all
            or any(isinstance(module, _NO_HOOKS) for module in found)
        )
        return [] if unsure else found

    def _on_call(self, module: torch.nn.Module, _: Any) -> None:
        if _compiling() or threading.get_ident() != self._thread or not torch.is_grad_enabled():
            return
        try:
            self._look(module)
        except Exception as error:  # noqa: BLE001 - logged; the user's loop goes on
            self.end()
            self._found = []
            _log_fault(error)

    setattr(_on_call, OWN, True)

    def _look(self, module: torch.nn.Module) -> None:
        self._calls += 1
        if id(module) not in self._known:
            owned = {id(parameter) for parameter in module.parameters()} & self._missing.keys()
            for key in owned:
                del self._missing[key]
            if owned:
                self._found.append(weakref.ref(module))
            self._known.update(id(inside) for inside in module.modules())
        if not self._missing or len(self._found) > _MOST_MODULES or self._calls > _MOST_CALLS:
            self.end()


class _Hooks:
    """The hooks on the steps of all optimizers, with the optimizers seen and the searches under way."""

    def __init__(self) -> None:
        self._on = True
        self._timing = False  # `begin_timing` was called
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}  # that have stepped, by their ids
        self._searches: dict[int, _Search] = {}  # by the id of the optimizer, until its next step
        self._handles = (
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        )

    def stop(self) -> None:
        """End the automatic watches and the searches, and remove the hooks."""
        self._on = False
        for search in list(self._searches.values()):
            search.end()
        model_watch.stop_automatic_watches()
        if self._timing:
            model_watch.end_timing()
        if not self._remove_if_idle():
            boundary.call_between_steps(None, lambda _: not self._remove_if_idle())

    def remove(self) -> None:
        """Remove the hooks."""
        self._on = False
        for handle in self._handles:
            handle.remove()
        for search in list(self._searches.values()):
            search.end()

    def _remove_if_idle(self) -> bool:
        """Remove the hooks and return True, unless another thread is in a step: torch may be iterating over them."""
        frames = sys._current_frames()
        del frames[threading.get_ident()]  # a frame that refers to itself keeps the caller's loader, and its workers
        if any(above.f_code.co_filename == _STEP_FILE for frame in frames.values() for above in _stack(frame)):
            return False
        self.remove()
        return True

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if _compiling() or not self._on:
            return
        phases = thread_phases()
        if not phases.asked:
            return
        known = self._optimizers.get(id(optimizer))
        try:
            if known is None or known() is not optimizer:
                self._first_step(optimizer)
            elif self._searches:
                self._end_search(optimizer, phases.asked)
            if phases.on_device or phase_times.gpu_in_use():
                model_watch.time_on_gpu(phases, _parameters(optimizer))
        except Exception as error:  # noqa: BLE001 - logged; the user's loop goes on
            _log_fault(error)
        phases.enter(OPTIMIZER, sys._getframe(1).f_code)

    def _step_ends(self, *_: Any) -> None:
        """End the optimizer's phase; torch does not call this hook if the step raises."""
        if not _compiling() and self._on and thread_phases().asked:
            thread_phases().leave(OPTIMIZER)

    def _first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin the search for the modules that own the parameters of an optimizer."""
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        if not self._timing:
            self._timing = True
            model_watch.begin_timing()
        stale = self._searches.pop(id(optimizer), None)
        if stale is not None:  # of a freed optimizer that had the same id
            stale.end()
        if model_watch.user_watches() or len(self._searches) >= _MOST_SEARCHES:
            return
        parameters = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
        # A closure that computes the gradients has not run yet: then all parameters count.
        parameters = [parameter for parameter in parameters if parameter.grad is not None] or parameters
        if _torch_compiles():
            self._watch(_compiled_models({id(parameter) for parameter in parameters}, sys._getframe(1)))
        else:
            self._searches[id(optimizer)] = _Search(parameters)

    def _end_search(self, optimizer: torch.optim.Optimizer, asked: int) -> None:
        """Watch what the search of an optimizer has found, unless it began in the same batch.

        An optimizer whose `step` calls that of its base class runs the hooks twice in a batch.
        """
        search = self._searches.get(id(optimizer))
        if search is not None and search.asked != asked:
            del self._searches[id(optimizer)]
            self._watch(search.result())

    @staticmethod
    def _watch(modules: list[torch.nn.Module]) -> None:
        if not model_watch.user_watches():
            for module in modules:
                model_watch.watch_automatically(module)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


# ---- Models that torch compiles. Each module that is called in compiled code is compiled anew where it or torch gets
# hooks, and a compiled module that is called under hooks on all modules makes torch warn. So such a model is not
# looked for among the calls, but among the global variables of the functions that run.


def _torch_compiles() -> bool:
    """Return whether `torch.compile` was called in this process."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(module, "cached_backends", {0: module})  # None: a function that is not to be compiled
    return any(backend for backend in backends.values())


def _compiled_models(parameters: set[int], frame: FrameType) -> list[torch.nn.Module]:
    """Return the modules that are compiled, or have compiled ones inside, and that own any of these parameters."""
    scopes = {id(above.f_globals): above.f_globals for above in itertools.islice(_stack(frame), _FRAMES)}
    values = [value for scope in scopes.values() for value in list(scope.values())]
    models = [value for value in values if torch.nn.Module in type(value).__mro__ and _is_compiled(value)]
    owners = [model for model in models if any(id(parameter) in parameters for parameter in model.parameters())]
    candidates = {id(model): model for model in owners}
    inner = {id(inside) for module in candidates.values() for inside in module.modules() if inside is not module}
    return [module for module in candidates.values() if id(module) not in inner]


def _is_compiled(module: torch.nn.Module) -> bool:
    kind = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
    return any(isinstance(inside, kind) or model_watch.compiled_in_place(inside) for inside in module.modules())


# ---- The hooks of this process.

_lock = threading.Lock()
_hooks: list[_Hooks] = []  # one, or none
_faulty = False


def begin() -> None:
    """Time optimizers, and the models that they train, from now on, in the threads that run measured loops."""
    if not _running():
        with _lock:
            if phase_times.on_loop_start is not None and not _running():  # else `end` was called meanwhile
                _hooks.append(_Hooks())


def _running() -> bool:
    return bool(_hooks)


def end() -> None:
    """Remove the hooks; time only what the user's code asks for."""
    with _lock:
        ended = _hooks.copy()
        _hooks.clear()
    for hooks in ended:
        hooks.stop()


def _log_fault(error: Exception) -> None:
    global _faulty  # noqa: PLW0603
    if not _faulty:  # once, not for each step
        _faulty = True
        log.error("a fault in kernel_monitor: phases of steps are not measured as they should be", exc_info=error)


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.Lock()
    for hooks in _hooks:
        hooks.remove()
    _hooks.clear()
