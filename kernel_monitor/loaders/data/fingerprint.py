"""A copy of a data set as workers got it, and a digest of the objects that they got."""

from __future__ import annotations

import hashlib
import logging
import marshal
import operator
import pickle
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from itertools import islice
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from ...text import log_outside
from ..attributes import attributes, slots
from .hugging_face import is_hugging_face

# ---- A digest of the objects that worker processes get, to find out whether they have changed since.

LONG = 1000  # elements of a list
MOST = 2 << 30  # the most bytes of a data set that a fingerprint reads
BLOCK = 1 << 20  # bytes; of a larger piece only length, start and end are read
LARGE = 64 << 20  # bytes of an array; of a larger one SAMPLES pieces of SAMPLE bytes are read
SAMPLES, SAMPLE = 256, 4096
_LARGE_LIST = 256 << 20  # bytes

log = logging.getLogger(__name__)

_OWN = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__slotnames__"})  # Python's


def fingerprint(*values: Any) -> bytes:
    """Return a digest of Python objects that changes when they change, for comparisons within a process.

    Equal objects have equal digests. A function is described by its code and the objects that this refers to, an array
    by its content, an object that cannot be described (an open file, a lock) by its identity. Only samples of arrays
    above 64 MB are read, and nothing after the first 2 GB. Never raises.
    """
    return b"".join(map(_fingerprint, values))


def _fingerprint(value: Any, depth: int = 4) -> bytes:
    digest = _described(value)
    if digest is not None:
        return digest
    # Parts that cannot be described are then described by their id, the other parts as usual: a copy of the object
    # is no change.
    parts: list[tuple[Any, Any]] = list(attributes(value).items())
    if type(value) in (list, tuple, dict) and len(value) < LONG:
        parts = list(value.items() if type(value) is dict else enumerate(value))
    if not parts or depth == 0:
        return _id(value)
    return repr([(_described(name), _fingerprint(inner, depth - 1)) for name, inner in parts]).encode()


def _id(value: Any) -> bytes:
    return object.__repr__(value).encode()


def _described(value: Any) -> bytes | None:
    """Return a digest of one object; None where its classes raise."""
    # First by values alone, which does not end if objects refer to each other in a circle; then with a memo of
    # objects, for which an object that is held twice differs from two equal objects.
    for fast in (True, False):
        digest = _Digest()
        try:
            _Describer(digest, fast=fast).dump(value)
        except _EnoughRead:
            return digest.value()
        except Exception:  # the user's own classes may raise anything
            log.debug("a fingerprint cannot be taken", exc_info=True)
        else:
            return digest.value()
    return None


class _EnoughRead(Exception):
    """`MOST` bytes were read."""


class _Digest:
    """The file that a description is written to."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._read = 0

    def write(self, data: Any) -> int:
        length = len(data)
        if length > BLOCK:  # a single value: the pickler writes all else in frames of 64 KB
            self._hash.update(length.to_bytes(8, "little"))
            self._hash.update(data[: BLOCK // 2])
            self._hash.update(data[-BLOCK // 2 :])
        else:
            self._hash.update(data)
        self._read += length
        if self._read > MOST:
            raise _EnoughRead
        return length

    def value(self) -> bytes:
        return self._hash.digest()


class _Describer(pickle.Pickler):
    """A pickler whose output is never unpickled, so that it can describe objects that others refuse."""

    def __init__(self, digest: _Digest, *, fast: bool) -> None:
        super().__init__(digest, protocol=5)
        self.fast = fast
        self._lists: dict[int, Any] = {}

    def reducer_override(self, value: Any) -> Any:  # called for all but plain values and containers
        try:
            if isinstance(value, FunctionType | type) and _is_importable(value):
                return NotImplemented  # by its name
            known = _DESCRIPTIONS.get(type(value))
            if known is not None:
                return known(value)
            if isinstance(value, torch.Tensor):
                return _tensor(value)
            if isinstance(value, np.ndarray):
                return _array(value)
            if isinstance(value, type):
                return _class(value)
            reduced = value.__reduce_ex__(5)
        except RecursionError:
            raise
        except Exception:  # the user's own classes may raise anything
            log.debug("an object is known by its attributes only", exc_info=True)
            # Describe it by its attributes; without any (an open file, a lock), by its identity.
            kept = attributes(value)
            reduced = (_known_by, (type(value),), kept) if kept else ""
        if isinstance(reduced, str):
            return _known_by, (type(value).__qualname__, id(value))
        if len(reduced) > 2 and type(reduced[2]) is dict:
            kept = {name: self._digested(inner) for name, inner in reduced[2].items()}
            return (*reduced[:2], kept, *reduced[3:])
        return reduced

    def _digested(self, value: Any) -> Any:
        """Return the digest of a long list of plain values, four times as fast as by pickle; other values unchanged."""
        if type(value) not in (list, tuple) or len(value) < LONG:
            return value
        if id(value) not in self._lists:
            self._lists[id(value)] = _list(value)
        return self._lists[id(value)]


def _known_by(*words: Any) -> None:
    """Stand for an object in a description; it is never called."""


def _function(value: FunctionType) -> Any:
    names = _names(value.__code__)
    around = {name: value.__globals__[name] for name in names if name in value.__globals__}
    cells = [_content(cell) for cell in value.__closure__ or ()]
    # As state, which a pickler writes after it has noted the object: so a function may refer to itself.
    inside = (value.__code__, value.__defaults__, value.__kwdefaults__, cells, around, value.__dict__)
    return _known_by, (value.__module__, value.__qualname__), inside


def _names(code: CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    return sorted({*code.co_names, *inner})


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _code(value: CodeType) -> Any:
    # Without its line numbers: a cell that is run again defines the same function.
    return _known_by, (value.co_name, value.co_code, value.co_consts, value.co_names, value.co_freevars)


def _class(value: type) -> Any:
    inside = {name: inner for name, inner in vars(value).items() if name not in _OWN}
    return _known_by, (value.__module__, value.__qualname__), (value.__bases__, inside)


def _is_importable(value: Any) -> bool:
    """Return whether a function or class can be imported by its name from a module.

    The user's own script or notebook does not count: there a name may be redefined, and globals are variables.
    """
    if value.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _tensor(value: torch.Tensor) -> Any:
    facts = (str(value.dtype), tuple(value.shape), str(value.device), value.requires_grad)
    if value.device.type != "cpu" or value.layout is not torch.strided:
        return _known_by, (*facts, id(value), value._version)
    plain = value.detach().resolve_conj().resolve_neg()
    return _known_by, (*facts, _read(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b"")


def _array(value: Any) -> Any:
    facts = (type(value).__qualname__, str(value.dtype), value.shape)
    if isinstance(value, np.memmap):
        return _known_by, (*facts, value.filename, value.offset)
    if value.dtype.hasobject:
        return _known_by, (*facts, value.tolist())
    whole = np.asarray(value)
    if not whole.flags.c_contiguous:
        whole = whole.T if whole.T.flags.c_contiguous else np.ascontiguousarray(whole)
    return _known_by, (*facts, _read(whole.reshape(-1).view(np.uint8)) if whole.size else b"")


def _list(value: Any) -> Any:
    """Return a digest of a list; the list itself if not all its elements are plain values."""
    hashed, read = hashlib.blake2b(digest_size=16), 0
    for start in range(0, len(value), LONG):
        part = value[start : start + LONG]
        if read < _LARGE_LIST:
            try:
                data = marshal.dumps(part, 2)  # version 2 writes values only, not which of them are the same object
            except ValueError:
                return value
        else:  # images in memory: by which objects they are, as plain values do not change
            data = np.fromiter(map(id, part), np.int64, len(part)).tobytes()
        hashed.update(data)
        read += len(data)
    return hashed.digest()


def _read(data: Any) -> bytes:
    """Return a digest of uint8[n]; above `LARGE` bytes, of `SAMPLES` pieces of it."""
    hashed = hashlib.blake2b(digest_size=16)
    if len(data) <= LARGE:
        hashed.update(data)
    else:
        for start in np.linspace(0, len(data) - SAMPLE, SAMPLES, dtype=np.int64).tolist():
            hashed.update(data[start : start + SAMPLE])
    return hashed.digest()


_DESCRIPTIONS: dict[type, Callable[[Any], Any]] = {
    FunctionType: _function,
    CodeType: _code,
    property: lambda value: (_known_by, (value.fget, value.fset)),
    staticmethod: lambda value: (_known_by, (value.__func__,)),
    classmethod: lambda value: (_known_by, (value.__func__,)),
    type(sys): lambda value: (_known_by, (value.__name__,)),
}


# ---- A copy of a data set that later changes do not affect: its state at the start of an epoch.

FEW = 64  # elements; longer containers are copied without copies of their elements

_COPIED = (Counter, defaultdict, deque)  # whole, as their own `copy` does
_CONTAINERS = (list, dict, OrderedDict, set, tuple)
_PLAIN = (int, float, bool, str, bytes, type(None))
_RECORDS = (SimpleNamespace, Namespace)  # of the standard library
COMPARED = 10_000  # elements; longer containers are compared by their length and their first elements
_MOST_COMPARED = 4096  # objects, and elements of an array, that are looked at
_SHARED = object()  # a tensor of which workers see every change: sending it to them has moved it to shared memory


class Held:
    """A data set as its workers hold it, who got it when this was made.

    It is a copy; objects that are not copied are shared with the user's data set. Of these the contents are kept, to
    tell whether they have changed since. None of the user's code is called.

    Attributes:
        dataset: the copy; the user's own data set if its classes prevent a copy.
    """

    def __init__(self, dataset: Any) -> None:
        done: dict[int, Any] = {}
        try:
            self.dataset = _copied(dataset, done, dataset)
        except Exception:  # noqa: BLE001 - the user's own classes may raise anything: plain torch makes no copy
            what = "%s cannot be copied: changes are seen at once"
            log_outside(log, what, type(dataset).__name__, level=logging.INFO)
            self.dataset, done = dataset, {id(dataset): dataset}
        self._shared = [value for key, value in done.items() if id(value) == key]
        self._contents = contents(self._shared, self.dataset)

    def changed(self) -> bool:
        """Return whether objects that are shared with the user's data set have changed."""
        return not same_contents(self._contents, contents(self._shared, self.dataset))


def contents(values: list[Any], dataset: Any) -> list[Any]:
    """Return what objects hold, and what these hold in turn, for comparisons with `same_contents`.

    Attributes and elements as they are; some elements only of arrays, and of containers above `COMPARED`. Left out are
    functions and transforms, memory that workers share, objects of the standard library (loggers, locks) and private
    attributes of objects that are no data sets: these are often caches.
    """
    found: list[Any] = []
    todo, known = list(reversed(values)), set(map(id, values))
    while todo and len(known) < _MOST_COMPARED:
        value = todo.pop()
        kind = type(value)
        inner: list[Any] = []
        if issubclass(kind, torch.Tensor):
            found.append(_SHARED if value.is_inference() or value.is_shared() else value._version)
        elif issubclass(kind, np.ndarray):
            if value.flags.owndata:
                found.append(value.flat[:: value.size // _MOST_COMPARED + 1].tobytes())
        elif kind in (*_CONTAINERS, *_COPIED):
            elements = value.values() if isinstance(value, dict) else value
            inner = list(islice(elements, FEW))
            found.append(list(elements) if len(value) <= COMPARED else len(value))
        elif value is dataset or issubclass(kind, Dataset):
            inner = [*attributes(value).values(), *slots(value)]
        elif not callable(value) and (kind in _RECORDS or kind.__module__.split(".")[0] not in sys.stdlib_module_names):
            inner = [held for name, held in attributes(value).items() if name[:1] != "_"] + list(slots(value))
        found += inner
        new = {id(one): one for one in inner if type(one) not in _PLAIN and id(one) not in known}
        known |= new.keys()
        todo += reversed(new.values())
    return found


def same_contents(a: list[Any], b: list[Any]) -> bool:
    """Return whether two results of `contents` hold the same objects; numbers and texts may be equal ones."""
    return len(a) == len(b) and all(map(_equal, a, b))


def _equal(a: Any, b: Any) -> bool:
    if a is b or type(a) is not type(b):
        return a is b or a is _SHARED or b is _SHARED
    if type(a) is list:  # not by `==`, which calls the elements' own
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or all(map(_equal, a, b)))
    return type(a) in _PLAIN and bool(a == b)


def snapshot(dataset: Any) -> Any:
    """Return a copy of a data set in its present state; the data set itself if its own classes prevent a copy."""
    return Held(dataset).dataset


def copied(dataset: Any) -> Any:
    """Return a copy of a data set, in milliseconds for a million samples; raises the exceptions of the user's classes.

    Copies are made of data sets, transforms (modules, and other callable objects), and the lists, dictionaries and sets
    that they hold; two references to one object stay so. All else is shared: the samples themselves, arrays, open
    files, random generators, functions with their globals, and objects with a `__del__`; that of Hugging Face's data
    sets only drops references of the object, and they are copied.
    """
    return _copied(dataset, {}, dataset)


def _copied(value: Any, done: dict[int, Any], root: Any = None) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if id(value) in done:
        return done[id(value)]
    if kind in _CONTAINERS:
        copy: Any
        if len(value) > FEW or kind is set:
            done[id(value)] = copy = kind(value)  # a tuple stays the same object
        elif kind is tuple:
            inside = tuple(_copied(inner, done) for inner in value)
            done[id(value)] = copy = value if all(map(operator.is_, inside, value)) else inside
        else:
            done[id(value)] = copy = kind()
            if kind is list:
                copy.extend(_copied(inner, done) for inner in value)
            else:
                copy.update((key, _copied(inner, done)) for key, inner in value.items())
        return copy
    if kind is MethodType:  # one that was chosen at the start is then the copy's
        return MethodType(value.__func__, _copied(value.__self__, done))
    if kind in _COPIED:
        done[id(value)] = value.copy()
        return done[id(value)]
    is_root = value is root and not issubclass(kind, type) and not hasattr(kind, "__del__")
    done[id(value)] = value
    if not (is_root or _has_state(value) or is_hugging_face(kind)):
        return value
    try:
        # Not copy.copy(): a class's pickling is not meant for copies in the same process.
        made = object.__new__(kind)
        inside = object.__getattribute__(made, "__dict__")
    except (TypeError, AttributeError):  # a class in C, or one without attributes
        return value
    done[id(value)] = made
    inside.update((name, _copied(inner, done)) for name, inner in attributes(value).items())
    return made


def _has_state(value: Any) -> bool:
    """Return whether an object is a data set or a transform whose attributes are all its state."""
    kind = type(value)
    if issubclass(kind, (type, FunctionType)) or hasattr(kind, "__del__"):
        return False
    if any("__slots__" in vars(base) and vars(base)["__slots__"] for base in kind.__mro__[:-1]):
        return False
    return issubclass(kind, (Dataset, nn.Module)) or hasattr(kind, "image_file") or callable(value)
