"""Sends workers what they cannot import: classes and functions of the script or of a notebook's cells, closures.

cloudpickle describes these by what they consist of; what cannot be pickled and was there when the fork server was made
is named by its number there; all else is sent as multiprocessing sends it, tensors by their shared memory. What a
worker returns names such a class by its number, so that here it is the notebook's own class.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import logging
import mmap
import operator
import os
import pickle
import random
import socket
import sys
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any, NewType, ParamSpec

import cloudpickle
import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset

from ..data.calls import REPLACED
from ..data.keyed_dataset import Fetched
from . import fork_server

log = logging.getLogger(__name__)

# ---- Finds out what cannot be pickled, without the time and memory that a million samples take.

_TRIED = 100  # elements of a list that are pickled to see whether all can be


class _Shortened:
    """For picklers: of long lists the beginning is pickled, of tensors and arrays nothing."""

    def persistent_id(self, value: Any) -> Any:
        if type(value) is list and len(value) > _TRIED:
            return pickled(type(self), value[:_TRIED])
        # ForkingPickler would move a tensor's memory to where other processes have it, too.
        numbers = isinstance(value, torch.Tensor) or (type(value) is np.ndarray and not value.dtype.hasobject)
        return "numbers" if numbers else None


class Trial(_Shortened, ForkingPickler):
    """Raises for what multiprocessing cannot send, or should not."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            raise pickle.PicklingError("torch sends its state in shared memory that is gone before it arrives")
        if _is_mapped(value):
            raise pickle.PicklingError("NumPy would send the whole file")
        return super().persistent_id(value)


def pickled(pickler: Any, value: Any) -> bytes:
    """Return what a kind of pickler makes of a value."""
    sink = io.BytesIO()
    pickler(sink).dump(value)
    return sink.getvalue()


def _is_mapped(value: Any) -> bool:
    """Return whether a value is a whole file that NumPy maps into memory, which another process can map as well."""
    # Of a part of it NumPy does not say where in the file it begins. What is written in mode "c" is in no file.
    if type(value) is not np.memmap or value.filename is None or value.mode not in ("r", "r+", "w+"):
        return False
    return isinstance(value.base, mmap.mmap)


_OF_PROCESS = (
    (random._inst, random, "_inst"),
    (np.random.mtrand._rand, np.random.mtrand, "_rand"),
    (torch.default_generator, torch, "default_generator"),
)
"""The process's own generators, which `from random import randint` refers to: never sent as copies of themselves."""

_numbers = itertools.count()
_sent: weakref.WeakValueDictionary[str, WorkerPayload] = weakref.WeakValueDictionary()
_here: tuple[str, dict[int, int], list[Any]] = ("", {}, [])
"""In a worker: the key of what it was sent, and the numbers of its classes and functions by their ids, and these."""


class _ValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles classes and functions that a new process could not import by value, all else as multiprocessing does.

    Args:
        file: where to.
        number: the number of a class or function.
        remote: for another machine, which has neither this one's shared memory, nor its files, nor the script.

    Attributes:
        by_value: those classes and functions, by number.
    """

    def __init__(self, file: io.BytesIO, number: Callable[[Any], int] | None = None, *, remote: bool = False) -> None:
        if not remote:
            # Before the base class is set up, which reads it once.
            self.dispatch_table = {**ForkingPickler(file).dispatch_table, **cloudpickle.Pickler.dispatch_table}
        super().__init__(file)
        self.by_value: dict[int, Any] = {}
        self._number = number or id
        self._remote = remote

    def reducer_override(self, value: Any) -> Any:
        number = None if self._remote else fork_server.number(value)
        if number is not None:
            return fork_server.numbered, (number,)
        for generator, module, name in _OF_PROCESS:
            if value is generator:
                return getattr, (module, name)
        if not self._remote and _is_mapped(value):
            order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
            mode = "r+" if value.mode == "w+" else value.mode  # w+ would make the file anew
            return np.memmap, (value.filename, value.dtype, mode, value.offset, value.shape, order)
        if type(value) is functools.cached_property:  # before Python 3.12 it holds a lock
            return _cached_property, (value.func, value.attrname)
        described = _DESCRIBED.get(type(value))
        if described is not None and not (_found(value) and self._importable(value)):
            return described(value)
        if not isinstance(value, FunctionType | type):
            return _by_attributes(value) or super().reducer_override(value)
        if isinstance(value, FunctionType) and value in REPLACED:
            return getattr, (sys.modules[value.__module__], value.__name__)
        reduced = super().reducer_override(value)
        if isinstance(reduced, tuple):
            self.by_value[self._number(value)] = value
            if isinstance(value, FunctionType) and self._importable(value, value.__globals__):
                return _in_its_module(value, reduced)
        return reduced

    def _importable(self, value: Any, names: dict[str, Any] | None = None) -> bool:
        """Return whether the module of a value, if `names` are its globals, exists in a new process as well."""
        module = sys.modules.get(value.__module__ or "")
        if module is None or (names is not None and vars(module) is not names):
            return False
        return module.__name__ != "__main__" and getattr(module, "__spec__", None) is not None


class ValueTrial(_Shortened, _ValuePickler):
    """Raises for what cannot be sent by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._arrays: dict[int, Any] = {}

    @property
    def copied(self) -> int:
        """Bytes of arrays that each worker gets a copy of; a forked one shares them."""
        return sum(array.nbytes for array in self._arrays.values())

    def persistent_id(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            self._arrays[id(value)] = value
        return super().persistent_id(value)


class _Finder(_Shortened, _ValuePickler):
    """Collects what cannot be pickled, instead of raising for it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        if type(value) in (list, dict) and len(value) > _TRIED:
            first = itertools.islice(value.values() if type(value) is dict else value, _TRIED)
            self.found |= {id(inner): inner for inner in unpicklable(list(first))}
            return "the beginning"
        return super().persistent_id(value)

    def reducer_override(self, value: Any) -> Any:
        try:
            if isinstance(value, Connection | socket.socket):  # sending one starts a thread of multiprocessing's
                raise TypeError("a connection")
            reduced = super().reducer_override(value)
            if reduced is NotImplemented and not isinstance(value, FunctionType | type):
                reduce = self.dispatch_table.get(type(value))
                reduced = value.__reduce_ex__(self.proto) if reduce is None else reduce(value)
        except Exception:  # whatever the user's own classes raise
            log.debug("workers inherit a %s", type(value).__name__, exc_info=True)
            self.found[id(value)] = value
            return dict, ()  # anything that can be pickled
        return reduced


def unpicklable(values: Any) -> list[Any]:
    """Return what a forked process inherits and no pickle can hold: locks, open files, shared counters, handles."""
    finder = _Finder(io.BytesIO())
    try:
        finder.dump(values)
    except Exception:  # whatever else the user's own classes raise: what was found by then
        log.debug("not everything that workers need could be looked at", exc_info=True)
    return list(finder.found.values())


class _RemoteTrial(_Shortened, _ValuePickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, remote=True)


def for_other_machines(value: Any) -> bytes:
    """A value by value, for `pickle.loads` in a process of another machine.

    Raises:
        Exception: the user's objects cannot be pickled.
    """
    file = io.BytesIO()
    _ValuePickler(file, remote=True).dump(value)
    return file.getvalue()


def why_not_remote(value: Any) -> str | None:
    """Return why a value cannot be sent to another machine, without a full stop; None if it can."""
    try:
        pickled(_RemoteTrial, value)
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return None


class _Numbers:
    """The numbers of classes and functions, in the order in which they were met.

    It is an object of its own, so that a pickler, which holds it, does not hold the `WorkerPayload` that keeps the
    pickler: the user's data set would live until Python looks for cycles.
    """

    def __init__(self) -> None:
        self.objects: list[Any] = []  # by number
        self._known: dict[int, int] = {}  # the numbers, by id

    def number(self, value: Any) -> int:
        if id(value) not in self._known:
            self._known[id(value)] = len(self.objects)
            self.objects.append(value)
        return self._known[id(value)]


class WorkerPayload:
    """The objects that are sent to workers in one piece, so that what they share is shared there, too."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._key = f"{os.getpid()}-{next(_numbers)}"
        self._numbers = _Numbers()
        self._pickler: _ValuePickler | None = None
        _sent[self._key] = self

    def __reduce__(self) -> Any:
        # Anew for each worker: shared memory is handed to one process.
        file = io.BytesIO()
        # Kept, because it holds what was made to be sent, such as the tensor with a generator's state, whose shared
        # memory would be gone before the worker has it.
        self._pickler = pickler = _ValuePickler(file, self._numbers.number)
        pickler.dump((self._parts, pickler.by_value))  # the second is complete once the first is written
        data = file.getvalue()
        file.seek(0)
        file.truncate()  # the pickler keeps it, too
        return _received, (self._key, data)

    @property
    def objects(self) -> list[Any]:
        """The classes and functions that were sent by value, by number."""
        return self._numbers.objects


class Part:
    """Stands for one part of what is sent; in the worker it is the part itself."""

    def __init__(self, sent: WorkerPayload, number: int) -> None:
        self._sent = sent
        self._number = number

    def __reduce__(self) -> Any:
        return operator.getitem, (self._sent, self._number)


class _Returning:
    """A collate function in a worker whose result comes back with the classes that it was sent for."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, fetched: Any) -> _Returned:
        computed = self._collate(fetched)
        try:
            return _Returned(computed)
        except Exception:  # raised in the user's loop; torch's queue would print it, and the loop wait
            if not isinstance(computed, Fetched):
                raise
            failure = ExceptionWrapper(where="while a worker's batch was sent back")
            return _Returned(computed._replace(content=None, failure=failure))


class _Returned:
    """A worker's result; unpickled, it is the result itself."""

    def __init__(self, result: Any) -> None:
        file = io.BytesIO()
        _ReturnPickler(file).dump(result)
        self._data = file.getvalue()

    def __reduce__(self) -> Any:
        return pickle.loads, (self._data,)


class _ReturnPickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        key, numbers, _ = _here
        return (_known, (key, numbers[id(value)])) if id(value) in numbers else NotImplemented


def parts(keyed: Any, collate: Callable[[Fetched], Fetched], init: Callable[[int], None]) -> tuple[Any, Any, Any]:
    """The three things that a DataLoader sends to its workers, in a form in which they can be sent by value."""
    sent = WorkerPayload(keyed, _Returning(collate), init)
    return Part(sent, 0), Part(sent, 1), Part(sent, 2)


def arguments(given: tuple[Any, ...], collate: Any) -> Part:
    """The arguments that torch gives to a worker process, among them the collate function, to be sent by value."""
    return Part(WorkerPayload(tuple(_Returning(one) if one is collate else one for one in given)), 0)


def _received(key: str, data: bytes) -> Any:
    """In the worker: the parts."""
    global _here  # noqa: PLW0603 - a worker is sent one data set
    sent, objects = pickle.loads(data)  # noqa: S301 - from the process that started this one
    _here = key, {id(value): number for number, value in objects.items()}, list(objects.values())
    # For what is pickled past `_ReturnPickler`, by the user's own code: the notebook has these names there, too.
    main = vars(sys.modules["__main__"])
    for value in objects.values():
        if value.__module__ == "__main__" and value.__qualname__.isidentifier():
            main.setdefault(value.__name__, value)
    return sent


def _known(key: str, number: int) -> Any:
    """In the process of the training: what was sent under a number."""
    return _sent[key].objects[number]


def _found(value: Any) -> bool:
    """Return whether a class or function is what its module has under its name."""
    there: Any = sys.modules.get(value.__module__ or "")
    for name in getattr(value, "__qualname__", value.__name__).split("."):
        there = getattr(there, name, None)
    return there is value


def _by_attributes(value: Any) -> Any:
    """Return how a data set that refuses to be pickled is sent.

    By its attributes, as a fork would copy them. Else None.
    """
    kind: Any = type(value)
    if not isinstance(value, Dataset) and not hasattr(kind, "__getitem__"):
        return None
    methods: Any = object
    plain = (kind.__reduce__, kind.__reduce_ex__) == (methods.__reduce__, methods.__reduce_ex__)
    if plain or kind.__new__ is not methods.__new__ or not hasattr(value, "__dict__"):
        return None
    try:
        value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return None
    except Exception:  # noqa: BLE001 - the user's own
        return object.__new__, (kind,), vars(value), None, None, _set_attributes


def _set_attributes(value: Any, attributes: dict[str, Any]) -> None:
    value.__dict__.update(attributes)


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


_DESCRIBED: dict[Any, Callable[[Any], Any]] = {
    functools._lru_cache_wrapper: lambda value: (_cached, (value.__wrapped__, value.cache_parameters())),
    NewType: lambda value: (NewType, (value.__name__, value.__supertype__)),
    ParamSpec: lambda value: (ParamSpec, (value.__name__,)),
}
"""What stands in a module like a function or a class, and is otherwise sent by its name only."""


def _in_its_module(function: FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """A function's description by cloudpickle, but with its module's own globals instead of copies of some."""
    make, (code, _, *given), (attributes, slots), *others = reduced
    return make, (code, _Globals(function.__module__), *given), (attributes, {**slots, "__globals__": {}}), *others


class _Globals:
    """Stands for a module's globals; in the worker it is these."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> Any:
        return _globals, (self._module,)


def _globals(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(module))
