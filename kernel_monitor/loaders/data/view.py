"""Views: an object that behaves as the user's data set, but has a `TransformPoint` in place of each transform.

A view shares the data set's attributes and runs its methods, so that the data set's state exists only once. Wherever
the data set's code would find a transform (in an attribute, in a container or an object that it holds, in a closure or
a global of its functions), it finds the point. The user's objects are not changed.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.datasets.vision import StandardTransform

from ...text import cause, log_outside
from ..attributes import attributes, global_names
from ..transforms.chain import COMPOSES, held
from ..transforms.translate import find
from . import calls
from .calls import REPLACED, TransformPoint
from .hugging_face import batch_function, is_hugging_face

LONGEST = 100  # elements; longer containers hold samples, not transforms
_DEEPEST = 6  # levels of nested objects that are searched
_INSTALLED = ("site-packages", "dist-packages")

log = logging.getLogger(__name__)


class View:
    """A view of a data set.

    Args:
        dataset: the user's data set.
        functions: whether the user's functions and other callables count as transforms, too.

    Attributes:
        dataset: the object whose `__getitem__` is to be called; the data set itself if no transform was found.
        points: the transforms that were found.
        shared: the dictionaries, lists and sets among the globals of its functions.
        failure: why the data set could not be searched, and is called as it is; None if it was searched.
    """

    def __init__(self, dataset: Any, *, functions: bool = False) -> None:
        self.points: list[TransformPoint] = []
        self._made: list[tuple[type, str]] = []  # classes made for views, and the name changed in each
        self._functions = functions
        self.shared: list[Any] = []
        self.failure: str | None = None
        self._batched: set[int] = set()  # ids of the functions of whole batches: they are searched, and no transforms
        self._known: dict[int, tuple[Any, Any]] = {}  # by id: the value, kept alive, and its replacement
        self._read: list[tuple[Callable[[], Any], Any]] = []  # lookup of a replaced object, and the object
        try:
            # The package of Hugging Face's data sets is a library like others; its user's part is the batch function.
            hugging_face = is_hugging_face(type(dataset))
            self._home = "__main__" if hugging_face else type(dataset).__module__.partition(".")[0]
            self.dataset = self._replaced(dataset, _DEEPEST)
        except Exception as error:  # noqa: BLE001 - the user's classes may raise anything
            log_outside(log, "%s cannot be examined", type(dataset).__name__, level=logging.INFO)
            self.failure = cause(error)
            self.dataset, self.points, self.shared, self._read = dataset, [], [], []

    def __del__(self) -> None:
        # A class is a reference cycle: objects that it refers to, with their open files and databases, would live until
        # the next garbage collection.
        for made, name in self._made:
            if name in vars(made):
                type.__delattr__(made, name)

    @property
    def current(self) -> bool:
        """Whether the data set still finds the same transforms."""
        return all(lookup() is before for lookup, before in self._read)

    @property
    def found(self) -> list[Any]:
        """The present objects at the places where transforms were found."""
        return [lookup() for lookup, _ in self._read]

    def is_users(self, value: Any) -> bool:
        """Return whether a value is an object of a class of the user's."""
        return not self._library(type(value).__module__)

    def is_from_user(self, made: Any) -> bool:
        """Return whether a class or function is the user's."""
        return not self._library(made.__module__)

    def _replaced(self, value: Any, depth: int) -> Any:
        """Return the value with points in place of its transforms; the value itself if it holds no transform."""
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = value, value  # for a value that contains itself
        kind = type(value)  # not `isinstance`, which asks an object for its class
        if depth == 0 or issubclass(kind, (type, torch.Tensor, np.ndarray)):
            return value
        made = value
        if kind in (types.FunctionType, types.BuiltinFunctionType) and value in REPLACED:
            made = REPLACED[value]
        elif kind is types.BuiltinFunctionType:
            made = calls.replacement(value)
        elif kind is types.MethodType and id(value) in self._batched:
            made = self._method(value, depth)
        elif _is_transform(value) or (
            self._functions and depth < _DEEPEST and id(value) not in self._batched and self._callable(value)
        ):
            made = TransformPoint(value)
            self.points.append(made)
        elif kind is types.FunctionType:
            made = self._function(value, depth)
        elif issubclass(kind, functools.partial):
            function, named = self._replaced(value.func, depth - 1), self._replaced(value.keywords, depth - 1)
            args = self._replaced(value.args, depth - 1)
            if function is not value.func or named is not value.keywords or args is not value.args:
                made = functools.partial(function, *args, **named)
        elif kind in (dict, OrderedDict, list, tuple):
            made = self._container(value, depth) if len(value) <= LONGEST else value
        elif is_hugging_face(kind):
            self._batched.add(id(batch_function(value)))
            made = self._object(value, depth)
        elif kind.__dictoffset__ and (kind is StandardTransform or not self._library(kind.__module__)):
            made = self._object(value, depth)
        self._known[id(value)] = value, made
        return made

    def _callable(self, value: Any) -> bool:
        """Return whether a value is a function or a callable object of the user's, and no data set."""
        kind = type(value)
        if kind is types.FunctionType:
            return not self._library(value.__module__)
        is_theirs = not self._library(kind.__module__) or issubclass(kind, functools.partial)
        return callable(value) and is_theirs and not hasattr(kind, "__getitem__")

    def _container(self, value: Any, depth: int) -> Any:
        pairs = list(value.items()) if issubclass(type(value), dict) else list(enumerate(value))
        changed = {key: made for key, inner in pairs if (made := self._replaced(inner, depth - 1)) is not inner}
        if not changed:
            return value
        if isinstance(value, dict):
            for key in changed:
                self._keep_lookup(functools.partial(value.get, key), value[key])
            return type(value)({**value, **changed})
        return type(value)(changed.get(number, inner) for number, inner in pairs)

    def _function(self, function: types.FunctionType, depth: int) -> types.FunctionType:
        """Return the function with changed globals and closure, if these hold transforms or openers."""
        if self._library(function.__module__):
            return function
        outer = function.__globals__
        others: dict[str, Any] = {}
        for name in global_names(function.__code__):
            if issubclass(type(outer.get(name)), types.ModuleType) and (
                (module := calls.seen(outer[name], function.__code__)) is not outer[name]
            ):
                others[name] = module
                self._keep_lookup(functools.partial(outer.get, name), outer[name])
            if type(outer.get(name)) in (dict, list, set):
                self.shared.append(outer[name])
            if name in outer and (made := self._replaced(outer[name], depth - 1)) is not outer[name]:
                others[name] = made
                self._keep_lookup(functools.partial(outer.get, name), outer[name])
        cells = []
        for cell in function.__closure__ or ():
            made = self._replaced(_content(cell), depth - 1)
            cells.append(cell if made is _content(cell) else types.CellType(made))
            if cells[-1] is not cell:
                self._keep_lookup(functools.partial(_content, cell), _content(cell))
        if not others and all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)):
            return function
        made = types.FunctionType(
            function.__code__, _Overlay(outer, others), function.__name__, function.__defaults__, tuple(cells) or None
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    def _method(self, method: types.MethodType, depth: int) -> types.MethodType:
        """Return the method of an object with points in place of its transforms."""
        owner, function = self._replaced(method.__self__, depth - 1), method.__func__
        made = self._function(function, depth) if type(function) is types.FunctionType else function
        return method if owner is method.__self__ and made is function else types.MethodType(made, owner)

    def _object(self, value: Any, depth: int) -> Any:
        """Return an object of a derived class that shares the attributes, if some of these hold transforms."""
        kind = type(value)
        own = attributes(value)
        changed: dict[str, Any] = {}
        for name, inner in list(own.items()):
            if (made := self._replaced(inner, depth - 1)) is not inner:
                changed[name] = _Attribute(name, made)
                self._keep_lookup(functools.partial(own.get, name), inner)
        for name, member in () if kind is StandardTransform else self._members(kind):
            if name in changed or name in ("__init__", "__class__"):
                continue
            replaced = self._member(member, depth)
            if replaced is not member:
                changed[name] = replaced
        made = self._derived(kind, changed) if changed else None
        if made is None:
            return value
        self._made += [(made, name) for name in changed]
        view = object.__new__(made)
        object.__setattr__(view, "__dict__", own)
        for name, inner in own.items():
            if type(inner) is types.MethodType and type(inner.__self__) is kind:
                # A method that was chosen at the start: it is the data set's, not the view's.
                setattr(made, name, _Attribute(name, getattr(view, inner.__func__.__name__, inner)))
                self._made += [] if name in changed else [(made, name)]
        return view

    def _derived(self, kind: Any, changed: dict[str, Any]) -> Any:
        """Return a subclass of `kind` with these members, for an object that shares another's attributes.

        It is None if that is impossible: objects of `kind` have other state than attributes, or deriving from it runs
        user code.
        """
        metaclass: Any = type(kind)
        watched = (kind, "__init_subclass__"), (metaclass, "__new__"), (metaclass, "__init__")
        if not all(self._library(_origin(*where)) for where in watched) or any(map(_slots, kind.__mro__)):
            return None
        names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        if hasattr(kind, "__del__"):
            names["__del__"] = _nothing  # the object's own `__del__` must not run for the view
        try:
            made = types.new_class(kind.__name__, (kind,), exec_body=lambda members: members.update(names | changed))
            object.__new__(made)
        except TypeError:  # an Enum; a dict, a tensor or another class in C
            return None
        return made

    def _member(self, member: Any, depth: int) -> Any:
        kind = type(member)
        if kind is types.FunctionType:
            return self._function(member, depth)
        if kind in (staticmethod, classmethod) and type(member.__func__) is types.FunctionType:
            made = self._function(member.__func__, depth)
            return member if made is member.__func__ else kind(made)
        if issubclass(kind, property) and type(member.fget) is types.FunctionType:
            return property(_of_property(self._function(member.fget, depth)), member.fset, member.fdel)
        if _is_transform(member) or kind in (dict, OrderedDict, list, tuple):
            return self._replaced(member, depth - 1)
        return member

    def _members(self, kind: type) -> Iterator[tuple[str, Any]]:
        """Yield the members of a class that attribute look-up finds in the user's own classes.

        They are sorted by name: a class that was pickled by value has them in another order.
        """
        seen: set[str] = set()
        for base in kind.__mro__:
            for name, member in sorted(vars(base).items()):
                if name not in seen and not self._library(base.__module__):
                    yield name, member
                seen.add(name)

    def _library(self, module: str | None) -> bool:
        """Return whether a module belongs to Python, or to an installed package other than the data set's own."""
        top = (module or "").partition(".")[0]
        if top in ("__main__", self._home):
            return False
        if top in sys.stdlib_module_names or top in ("torch", "torchvision"):
            return True
        file = getattr(sys.modules.get(top), "__file__", None) or ""
        return any(part in file for part in _INSTALLED)

    def _keep_lookup(self, lookup: Callable[[], Any], present: Any) -> None:
        self._read.append((lookup, present))


def _is_transform(value: Any) -> bool:
    """Return whether a value is a transform, as far as can be told without calling it."""
    kind = type(value)
    if issubclass(kind, type) or not callable(value):
        return False
    return (
        kind in COMPOSES
        or issubclass(kind, nn.Module)
        or kind.__module__.startswith("torchvision.transforms")
        or find(value) is not None
        or bool(held(value))
    )


class _Overlay(dict[str, Any]):
    """The globals of a function with some names changed; other names are looked up in the original."""

    def __init__(self, outer: dict[str, Any], changed: dict[str, Any]) -> None:
        super().__init__(changed)
        self._outer = outer

    def __missing__(self, name: str) -> Any:
        return self._outer[name]


class _Attribute:
    """A descriptor of a view's attribute that has another value than the data set's."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else self._value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = self._value = value

    def __delete__(self, instance: Any) -> None:
        del instance.__dict__[self._name]


def _nothing(_object: Any) -> None:
    """Do nothing, as the `__del__` of a view."""


def _of_property(getter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a getter that wraps a property's transform in a point; a new transform at each call gets a new point."""

    def wrapped(instance: Any) -> Any:
        value = getter(instance)
        return TransformPoint(value) if _is_transform(value) else value

    return wrapped


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _origin(kind: type, name: str) -> str:
    return next((base.__module__ for base in kind.__mro__ if name in vars(base)), "builtins")


def _slots(kind: type) -> bool:
    return bool(vars(kind).get("__slots__"))
