"""What an object keeps, read without running any code of its class: a property or a `__getattr__` may do anything."""

from __future__ import annotations

from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any


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
