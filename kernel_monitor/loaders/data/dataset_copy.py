"""A copy of a data set that later changes do not reach: its state at the start of an epoch.

Plain torch's workers have the data set as it was when they were started: a change in the middle of an epoch is seen
in the next one, and with persistent workers never. Here several engines may deliver one epoch, some of them in this
process, so they all work on such a copy.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from ..attributes import attributes

log = logging.getLogger(__name__)

FEW = 64  # elements: longer containers are copied, what is in them is not

_COPIED = (Counter, defaultdict, deque)  # whole, as their own `copy` does
_CONTAINERS = (list, dict, OrderedDict, set, tuple)


def snapshot(dataset: Any) -> Any:
    """Return a copy of a data set that keeps its state; the data set itself where its own classes prevent that."""
    try:
        return copied(dataset)
    except Exception:  # whatever the user's own classes raise: plain torch makes no copy, and the loop must go on
        log.info("%s cannot be copied, so its changes are seen at once", type(dataset).__name__, exc_info=True)
        return dataset


def copied(dataset: Any) -> Any:
    """As `snapshot`, in milliseconds for a million samples; raises whatever the classes of what it holds raise.

    Copied are data sets, transforms (modules, and other objects that can be called), and the lists, dictionaries and
    sets that they hold; two references to one object stay so. All else is shared: the samples themselves, arrays,
    open files, random generators, functions with what they refer to, and objects that do something at their end.
    """
    return _copied(dataset, {}, dataset)


def _copied(value: Any, done: dict[int, Any], root: Any = None) -> Any:
    if id(value) in done:
        return done[id(value)]
    kind = type(value)
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
    if not (_has_state(value) or (value is root and not issubclass(kind, type) and not hasattr(kind, "__del__"))):
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
    """Whether an object is a data set or a transform whose attributes are all its state."""
    kind = type(value)
    if issubclass(kind, (type, FunctionType)) or hasattr(kind, "__del__"):
        return False
    if any("__slots__" in vars(base) and vars(base)["__slots__"] for base in kind.__mro__[:-1]):
        return False
    return issubclass(kind, (Dataset, nn.Module)) or hasattr(kind, "image_file") or callable(value)
