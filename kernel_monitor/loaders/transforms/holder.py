"""Objects that merely hold a transform: called with an image, they call one attribute with it and return the result.

torchvision's reference presets are such objects. They are recognised by the compiled code of their method, never by a
name: whatever else the method did would be lost if only what it holds were run.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

_CHANGING = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)  # flags of what a call does; the others are of docstrings and `__future__`
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl")


def _template(self: Any, image: Any) -> Any:
    return self.held(image)


def held(transform: Any) -> tuple[Any, ...]:
    """Return what a `plain` transform merely holds, as a tuple of one; an empty one where it does anything else.

    Seen as it is now: another object in the same attribute is seen at the next look.
    """
    kind = type(transform)
    method = getattr(kind, "forward" if isinstance(transform, nn.Module) else "__call__", None)
    if type(method) is not FunctionType:
        return ()
    code = method.__code__
    if _shape(code) != _shape(_template.__code__) or len(code.co_names) != 1:
        return ()
    return _stored(transform, code.co_names[0])


def plain(transform: Any) -> bool:
    """Whether calling a transform does nothing beside its class's own `forward`: a module may have hooks.

    What is no `nn.Module` is plain.
    """
    if not isinstance(transform, nn.Module):
        return True
    own = vars(transform)
    overridden = any(getattr(type(transform), name) is not getattr(nn.Module, name) for name in _CALLS)
    hooked = any(own.get(name) for name in _HOOKS)
    # As nn.Module itself asks before it leaves out hooks.
    everywhere = any(getattr(torch_module, f"_global{name}") for name in _HOOKS)
    compiled = own.get("_compiled_call_impl") is not None
    return not (overridden or hooked or everywhere or compiled or "forward" in own or "_call_impl" in own)


def _shape(code: CodeType) -> tuple[Any, ...]:
    """What two pieces of code of this Python have in common that do the same, but for names."""
    return (
        code.co_code,  # without what the interpreter rewrites while it runs
        code.co_flags & _CHANGING,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_nlocals,
        code.co_freevars,
        code.co_cellvars,
        getattr(code, "co_exceptiontable", b""),  # of Python 3.11
    )


def _stored(transform: Any, name: str) -> tuple[Any, ...]:
    """The attribute as a tuple of one, if it is merely stored: not computed by a property or the like."""
    kind: Any = type(transform)
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(getattr(kind, name, None), "__get__"):
        return ()
    own = getattr(transform, "__dict__", {})
    if name in own:
        found = own[name]
    elif isinstance(transform, nn.Module) and kind.__getattr__ is nn.Module.__getattr__ and name in own["_modules"]:
        found = own["_modules"][name]
    else:
        return ()
    return (found,) if callable(found) and found is not transform else ()
