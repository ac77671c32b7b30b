"""Reads an object's attributes and the globals that a function names, without running any code of the user's."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, MemberDescriptorType
from typing import Any

# ---- What an object keeps, read without running any code of its class: a property or a `__getattr__` may do anything.


def attributes(value: Any) -> dict[str, Any]:
    """Return an object's own attributes, its `__dict__` itself; an empty dictionary where it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def slots(value: Any) -> Iterator[Any]:
    """Yield what an object keeps in its `__slots__`."""
    for kind in type(value).__mro__:
        # By name: a class that was sent to another process by value has its members in another order.
        for _, member in sorted(vars(kind).items()) if "__slots__" in vars(kind) else ():
            if type(member) is MemberDescriptorType:
                try:
                    yield member.__get__(value)
                except AttributeError:  # not assigned yet
                    continue


# ---- The names that functions look up in their globals.


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the global names that compiled code reads, that of functions inside it included, each once.

    Names of attributes are not among them: a function that is sent to another process has there those globals only
    that it reads, and must look the same in both.
    """
    found = [step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += global_names(constant)
    return tuple(dict.fromkeys(found))
