"""Random generators that the user's own code draws from: they are found, seeded, saved and restored.

The process's default generators (torch's, Python's, NumPy's) and the generators that the user's objects hold are
seeded for each sample and for each batch. So the numbers that the code draws do not depend on the engine, on the number
of workers or on code that ran before, and differ from sample to sample, batch to batch and epoch to epoch.
"""

from __future__ import annotations

import base64
import functools
import logging
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..integrations.distributed import attribute
from ..text import cause, log_outside
from .attributes import attributes, global_names, slots

# ---- The random generators that a sampler may draw from, and their states as plain values.


def samplers(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the batch sampler and the samplers inside it (by `.sampler`), each after its path as text."""
    place, sampler = "batch_sampler", loader.batch_sampler
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield place, sampler
        seen.add(id(sampler))
        place, sampler = f"{place}.sampler", attribute(sampler, "sampler")


def own(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """Return the generators that are attributes of a loader or of its samplers, by their path."""
    found = {} if loader.generator is None else {"generator": loader.generator}
    for place, sampler in samplers(loader):
        for name, value in attributes(sampler).items():
            if type(value) is torch.Generator:
                found[f"{place}.{name}"] = value
    return found


class Defaults(NamedTuple):
    """The states of the process's default generators."""

    torch: torch.Tensor  # state of torch's CPU generator, uint8[5056]
    python: tuple[Any, ...]  # result of `random.getstate()`
    numpy: dict[str, Any]  # result of `numpy.random.get_state(legacy=False)`

    @classmethod
    def now(cls) -> Defaults:
        """Return the present states."""
        return cls(torch.get_rng_state(), random.getstate(), dict(np.random.get_state(legacy=False)))  # noqa: NPY002 - what samplers use

    def restore(self) -> None:
        """Put the process's generators into these states."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002

    def same(self, other: Defaults) -> bool:
        """Return whether both would draw the same numbers."""
        return self.plain() == other.plain()

    def plain(self) -> dict[str, Any]:
        """Return the states as JSON values."""
        version, words, gauss = self.python
        return {"torch": pack(self.torch), "python": [version, list(words), gauss], "numpy": _listed(self.numpy)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Defaults:
        """Return the states from the result of `plain`."""
        version, words, gauss = plain["python"]
        return cls(unpack(plain["torch"]), (version, tuple(words), gauss), dict(plain["numpy"]))


class Apart:
    """An iterator whose steps use default generators of its own; those of the process stay as they are.

    It draws an order again: the order must be the same as before, and the training must not notice.
    """

    def __init__(self, states: Defaults) -> None:
        self._states = states
        self._outside: Defaults | None = None
        self._batches: Iterator[Any] = iter(())

    def __enter__(self) -> Apart:
        self._outside = Defaults.now()
        self._states.restore()
        return self

    def __exit__(self, *_: object) -> None:
        outside, self._outside = self._outside, None
        self._states = Defaults.now()
        if outside is not None:
            outside.restore()

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over `batches` that uses these generators in each step."""
        self._batches = batches
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self:
            return next(self._batches)


def pack(state: torch.Tensor) -> str:
    """Return a generator's state, a uint8 tensor, as text (base 64)."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def unpack(text: str) -> torch.Tensor:
    """Return the generator's state from the text of `pack`."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


SAMPLE, TARGET, COLLATE = -1, -2, -3
"""Numbers of the streams that belong to no transform (the transforms count from 0); see `draws.stream_seeds`."""

Held = torch.Generator | random.Random | np.random.RandomState | np.random.Generator

_SEARCHED = 20_000  # the most objects that are searched for generators
_ELEMENTS = 100  # the most elements that are searched of a container: a list of a million samples holds no generators
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_LEAVES = (str, bytes, bytearray, int, float, complex, PurePath, types.ModuleType, torch.Tensor, np.ndarray)
_LIBRARIES = frozenset(
    {"PIL", "albucore", "albumentations", "builtins", "collections", "cv2", "functools", "nvidia", "numpy", "pyarrow"}
    | {"torch", "torchvision"}
)
_MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio; the seeds of a stream's generators differ by multiples of it


log = logging.getLogger(__name__)


class Streams:
    """The generators that some of the user's objects (functions, transforms, data sets) draw from.

    Attributes:
        held: the generators that the objects hold; empty if `failure` is set.
        failure: why the objects could not be searched; None if they were.
    """

    def __init__(self, *roots: Any) -> None:
        self.failure: str | None = None
        self.held: list[Held] = []
        try:
            self.held = held_generators(roots)
        except Exception as error:  # noqa: BLE001 - the user's own classes may raise anything; their code then draws as in plain torch
            log_outside(log, "random generators cannot be searched for", level=logging.INFO)
            self.failure = cause(error)

    def seed(self, seed: int) -> None:
        """Seed the process's default generators and those that the objects hold; `seed` has 63 bits."""
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - what users' functions draw from
        for number, generator in enumerate(self.held, 1):
            _seed(generator, (seed + number * _MIX) >> 1 & 0x7FFFFFFFFFFFFFFF)

    def states(self) -> list[Any]:
        """Return the states of these generators."""
        return [tuple(Defaults.now()), *(_methods(generator)[0]() for generator in self.held)]

    def apart(self) -> AbstractContextManager[None]:
        """Return a context after which the process's generators and the held ones are as before. It takes 0.2 ms."""
        return _Apart((Defaults.now, Defaults.restore), *map(_methods, self.held))


class _Apart:
    """A context that saves the states of generators on entry and restores them on exit.

    A `contextmanager` would not do: after an interrupt in its middle it would restore the states whenever its frame is
    collected.
    """

    def __init__(self, *methods: tuple[Callable[[], Any], Callable[[Any], object]]) -> None:
        self._methods = methods  # for each generator the functions that get and set its state
        self._states: list[Any] = []

    def __enter__(self) -> None:
        self._states = [get() for get, _ in self._methods]

    def __exit__(self, *_: object) -> None:
        for (_get, put), state in zip(self._methods, self._states, strict=True):
            put(state)


class ApartFromTransforms(_Apart):
    """A context for torch's and Python's default generators, from which torchvision's transforms draw; 15 µs."""

    def __init__(self) -> None:
        super().__init__((torch.get_rng_state, torch.set_rng_state), (random.getstate, random.setstate))


def held_generators(roots: Iterable[Any]) -> list[Held]:
    """Return the generators that objects hold in attributes, containers, closures and globals, in a fixed order.

    The globals of classes and functions of `_LIBRARIES` are not searched. The process's default generators, and
    generators that cannot be seeded (`random.SystemRandom`, bit generators of other packages than NumPy), are left out.
    """
    found: list[Held] = []
    seen: set[int] = set()
    keep: list[Any] = []  # temporary objects must live while their ids are compared
    queue: deque[Any] = deque(roots)
    while queue and len(seen) < _SEARCHED:
        value = queue.popleft()
        if value is None or issubclass(type(value), _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        keep.append(value)
        if issubclass(type(value), Held):
            if value is not torch.default_generator and _seedable(value):
                found.append(value)
        else:
            queue.extend(_inside(value))
    return found


def _inside(value: Any) -> Iterator[Any]:
    # Only the type decides, and only methods of built-in bases are called: the object's own might run any code.
    kind = type(value)
    if kind is types.FunctionType:
        yield from _of_function(value)
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif issubclass(kind, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif issubclass(kind, dict):
        yield from islice(dict.values(value), _ELEMENTS)
    elif (container := next((base for base in _CONTAINERS if issubclass(kind, base)), None)) is not None:
        yield from islice(container.__iter__(value), _ELEMENTS)
    elif not issubclass(kind, type):
        yield from _of_object(value)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    if _library(function.__module__):
        return
    for name in global_names(function.__code__):
        value = function.__globals__.get(name)
        # Only functions of the same module are searched: a chain of calls through libraries would not end.
        if type(value) is not types.FunctionType or value.__module__ == function.__module__:
            yield value


def _of_object(value: Any) -> Iterator[Any]:
    yield from list(attributes(value).values())
    yield from slots(value)
    for kind in type(value).__mro__:
        if not _library(kind.__module__):
            # Sorted by name: a class that was pickled by value has its members in another order.
            members = [value for _, value in sorted(vars(kind).items())]
            yield from [value for value in members if issubclass(type(value), types.FunctionType | Held)]


def _library(module: str | None) -> bool:
    top = (module or "").partition(".")[0]
    if top == "datasets":  # Hugging Face's package; many projects have a folder of that name
        return "datasets.arrow_dataset" in sys.modules
    return top in _LIBRARIES or (top in sys.stdlib_module_names and top != "__main__")


def _seedable(generator: Held) -> bool:
    kind = type(generator)
    if isinstance(generator, random.Random):
        plain = all(getattr(kind, name) is getattr(random.Random, name) for name in ("seed", "getstate", "setstate"))
        return plain and generator is not random._inst
    if isinstance(generator, np.random.Generator):
        return type(generator.bit_generator).__module__.startswith("numpy.random.")
    return generator is not np.random.mtrand._rand  # NumPy's default generator


def _seed(generator: Held, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    else:
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state


def _methods(generator: Held) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return the functions that get and set a generator's state."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return generator.get_state, generator.set_state
