"""A chain of transforms: its flat form, the numbers of its operations, and the image's state during translation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter, is_
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from ...steps.attached_loader import OWN
from ..attributes import attributes
from .operation import Cursor, Erase, Gate, Injection, Seeded, Step
from .program import Program

# ---- Transforms of albumentations: they take the image by its name and return it in a dictionary.

NAME = "image"
_CORE = "albumentations.core."
_BASES = {f"{_CORE}transforms_interface.BasicTransform", f"{_CORE}composition.BaseCompose"}
_COMPOSE = f"{_CORE}composition.Compose"
_OTHERS = {f"{_CORE}composition.ReplayCompose"}
"""Containers that return more than the image."""


def takes_name(transform: Any) -> bool:
    """Return whether a transform is called as `transform(image=image)["image"]`."""
    kind: Any = type(transform)
    return _is_named(kind)


@lru_cache(maxsize=1024)  # called for each sample
def _is_named(kind: Any) -> bool:
    names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    return not names.isdisjoint(_BASES) and names.isdisjoint(_OTHERS)


def members(transform: Any) -> list[Any] | None:
    """Return the transforms of a Compose that does nothing but call them in turn; None for any other object."""
    kind = type(transform)
    if f"{kind.__module__}.{kind.__qualname__}" != _COMPOSE or transform.p < 1:
        return None
    more = transform.processors or transform.additional_targets or transform.save_applied_params
    inside = list(transform.transforms)
    return inside if not more and all(map(takes_name, inside)) else None


class ByName(Injection):
    """A transform that takes the image by its name and draws nothing; base class of those that draw."""

    def begin(self, keys: Any) -> None:
        """Do nothing: it draws no numbers."""

    def __call__(self, image: Any) -> Any:
        return self.transform(image=image, force_apply=True)[NAME]


class SeededByName(Seeded):
    """Any other transform that takes the image by its name; its own generators and the process's are seeded."""

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self.transform = _positional(transform)


def _positional(transform: Any) -> Any:
    return lambda image: transform(image=image)[NAME]


COMPOSES = (v1.Compose, v2.Compose)
APPLY = (v1.RandomApply, v2.RandomApply)
CHOICE = (v1.RandomChoice, v2.RandomChoice)
ORDER = (v1.RandomOrder, v2.RandomOrder)
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Image.Resampling
_FLOAT_ROUNDINGS = 2  # each adds about 0.25 of 255 to what torchvision, which does not round floats, gives
_CHANGING = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)  # flags of what a call does; the others are of docstrings and `__future__`
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_global_hooks = attrgetter(*(f"_global{name}" for name in _HOOKS))
_calls = attrgetter("__call__", "_wrapped_call_impl", "_call_impl")


def plain(transform: Any) -> bool:
    """Return whether calling a transform runs only its `forward` and no hooks; true if it is no `nn.Module`."""
    if not issubclass(type(transform), nn.Module):
        return True
    own = vars(transform)
    overridden = not all(map(is_, _calls(type(transform)), _calls(nn.Module)))
    hooked = any(map(own.get, _HOOKS))
    # The same test as in nn.Module, but for the hook with which this package looks for the model of a loop.
    everywhere = any(not hasattr(hook, OWN) for hooks in _global_hooks(torch_module) for hook in list(hooks.values()))
    compiled = own.get("_compiled_call_impl") is not None
    return not (overridden or hooked or everywhere or compiled or "forward" in own or "_call_impl" in own)


def flatten(transform: Any) -> Iterator[Any]:
    """Yield the transforms of a chain in the order in which they run.

    Nested `Compose` and `Sequential`, and objects that merely hold a transform, are opened.
    """
    inside = None
    if plain(transform):
        if type(transform) in COMPOSES:
            inside = transform.transforms
        elif type(transform) is nn.Sequential:
            inside = transform
        else:
            inside = held(transform) or members(transform)
    if inside is not None:
        for inner in inside:
            yield from flatten(inner)
    elif transform is not None:
        yield transform


def _template(self: Any, image: Any) -> Any:
    return self.held(image)


def held(transform: Any) -> tuple[Any, ...]:
    """Return the transform that a `plain` transform merely holds, as a tuple of one; else an empty tuple.

    An object that merely holds a transform, such as torchvision's reference presets, calls one attribute with the image
    and returns the result. It is recognised by the compiled code of its method, never by a name, because anything else
    that the method did would be lost. The attribute's present value is returned; it may differ at the next call.
    """
    kind = type(transform)
    method = getattr(kind, "forward" if issubclass(kind, nn.Module) else "__call__", None)
    if type(method) is not FunctionType:
        return ()
    code = method.__code__
    if len(code.co_names) != 1 or _shape(code) != _shape(_template.__code__):
        return ()
    return _stored(transform, code.co_names[0])


def _shape(code: CodeType) -> tuple[Any, ...]:
    """Return the parts of a code object that are equal in code that does the same with other names."""
    return (
        code.co_code,  # without the specialisations that the interpreter writes into running code
        code.co_flags & _CHANGING,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_nlocals,
        code.co_freevars,
        code.co_cellvars,
        getattr(code, "co_exceptiontable", b""),  # since Python 3.11
    )


def _stored(transform: Any, name: str) -> tuple[Any, ...]:
    """Return the attribute as a tuple of one if it is stored, not computed by a descriptor; else an empty tuple."""
    kind: Any = type(transform)
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(getattr(kind, name, None), "__get__"):
        return ()
    own = attributes(transform)
    if name in own:
        found = own[name]
    elif issubclass(kind, nn.Module) and kind.__getattr__ is nn.Module.__getattr__ and name in own["_modules"]:
        found = own["_modules"][name]
    else:
        return ()
    return (found,) if callable(found) and found is not transform else ()


def operations(transform: Any) -> int:
    """Return how many operation numbers a transform takes: one for itself and one for each transform inside it."""
    return 1 + sum(operations(inner) for branch in branches(transform) for _, inner in branch)


def numbered(transforms: Iterable[Any], first: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield each transform of a flat chain with the number of its operation."""
    for transform in transforms:
        yield first, transform
        first += operations(transform)


def branches(transform: Any, operation: int = 0) -> list[list[tuple[int, Any]]]:
    """Return the branches of a RandomApply, RandomChoice or RandomOrder with number `operation`; else an empty list.

    Each branch is flattened and `numbered`.
    """
    if type(transform) not in (*APPLY, *CHOICE, *ORDER) or not plain(transform):
        return []
    inside = [list(flatten(inner)) for inner in transform.transforms]
    numbers = numbered((inner for branch in inside for inner in branch), operation + 1)
    return [[next(numbers) for _ in branch] for branch in inside]


def gates_of(choice: Any, operation: int) -> list[Gate]:
    """Return the gate of each branch of a RandomChoice with number `operation`."""
    weights = [1.0] * len(choice.transforms) if choice.p is None else [float(p) for p in choice.p]
    total = sum(weights)
    sums = [0.0, *accumulate(weight / total for weight in weights[:-1]), 1.0]
    return [Gate(operation, low, high) for low, high in pairwise(sums)]


def name_of(transform: Any) -> str:
    """Return a transform's name for users: that of its class, or of the function itself."""
    if type(transform).__module__ == "builtins" and hasattr(transform, "__name__"):
        return str(transform.__name__)
    return type(transform).__name__


def interpolation(value: Any) -> str:
    """Return torchvision's name of an interpolation, which may be an enum, a number or a name."""
    if isinstance(value, InterpolationMode):
        return str(value.value)
    return _PILLOW.get(value, str(value)) if isinstance(value, int) else str(value)


class Refused(Exception):
    """DALI cannot do a transform; the message is the reason, to which `translate` adds name and position."""


@dataclass(frozen=True)
class Op:
    """An entry of a known transform."""

    # Adds the transform to a chain; raises `Refused` if DALI cannot do it with these arguments, at this place.
    read: Callable[[Chain, Any], None]
    # Makes a copy of the transform that takes its numbers from the plan; None if it draws none.
    inject: Callable[[int, Any, Cursor], Injection] | None = None
    scales: bool = False  # whether the transform changes the type or the scale of values


class Chain:
    """The translation of a chain under way: the image's state, and the steps so far."""

    def __init__(self, kind: str = "pil") -> None:
        # `pil`, `tensor` (uint8), `image` (uint8 tv_tensors.Image), `array` (uint8, NumPy's), `floats` (float32)
        # (and, after albumentations' Normalize, `float array`)
        self.kind = kind
        self.operation = 0  # number of the transform that is being read
        self.gates: tuple[Gate, ...] = ()  # the gates that decide whether that transform is applied
        self.size: tuple[int, int] | None = None  # (height, width) in pixels, if it is the same for all images
        self.steps: list[Step] = []  # steps on 8-bit pixels
        self.tail: list[Erase] = []  # steps after the scaling
        self.factor = [1.0, 1.0, 1.0]  # the scaling, per channel
        self.offset = [0.0, 0.0, 0.0]
        self.normalised = False  # whether Normalize has been read
        self._roundings = 0

    def copy(self) -> Chain:
        """Return an independent copy."""
        other = copy(self)
        other.steps, other.tail = list(self.steps), list(self.tail)
        return other

    @property
    def whole(self) -> bool:
        """Whether pixels are 8-bit integers, as DALI's are until the scaling."""
        return self.kind not in ("floats", "float array")

    @property
    def cut(self) -> bool:
        """Whether fractions of gray are truncated, as by torch with 8-bit pixels, and not by Pillow."""
        return self.kind in ("tensor", "image")

    def spatial(self) -> None:
        """Refuse an operation that moves pixels if DALI would have to do it after the scaling."""
        if self.tail:
            raise Refused("it comes after RandomErasing")

    def pixels(self) -> None:
        """Refuse an operation that computes new pixel values if DALI's 8-bit values would differ too much."""
        self.spatial()
        if self.normalised:
            raise Refused("it comes after Normalize")
        if not self.whole:
            self._roundings += 1
            if self._roundings > _FLOAT_ROUNDINGS:
                raise Refused("too many transforms compute on floating-point pixels; put them before ToTensor")

    def certain(self, feature: str = "type") -> None:
        """Refuse a change of type, or of size, that only some samples would get."""
        if self.gates:
            raise Refused(f"it is applied by chance and changes the {feature}")

    def floats(self, factor: float) -> None:
        """Change the image to floats whose values are multiplied by `factor`."""
        self.kind = "floats"
        self.scale([factor] * 3, [0.0] * 3)

    def fill(self, colour: Any) -> tuple[int, ...]:
        """Return a transform's fill colour as 8-bit RGB."""
        colour = 0 if colour is None else colour
        listed = list(colour) if type(colour) in (tuple, list) else []
        values = [colour] * 3 if isinstance(colour, (int, float)) else listed
        values = values * 3 if len(values) == 1 else values
        if self.kind != "pil" and len(set(values)) > 1:
            raise Refused("its fill has a value for each channel")
        if not self.whole and any(values):
            raise Refused("it fills floating-point pixels with something else than 0")
        if len(values) != 3 or any(int(value) != value or not 0 <= value <= 255 for value in values):
            raise Refused(f"its fill is {colour}")
        return tuple(int(value) for value in values)

    def scale(self, factor: list[float], offset: list[float]) -> None:
        """Add a multiplication and an addition per channel to the scaling."""
        self.factor = [f * by for f, by in zip(self.factor, factor, strict=True)]
        self.offset = [o * by + plus for o, by, plus in zip(self.offset, factor, offset, strict=True)]
        scaled = [[v * by + plus for v, by, plus in zip(e.fill, factor, offset, strict=True)] for e in self.tail]
        self.tail = [replace(e, fill=tuple(fill)) for e, fill in zip(self.tail, scaled, strict=True)]

    def program(self) -> Program:
        """Return the program that does the whole chain in DALI; raise `Refused` if it gives no tensor of one size."""
        if self.kind in ("pil", "array", "float array"):
            raise Refused("Nothing in the transform makes a tensor of the image.")
        if self.size is None:
            raise Refused("No transform gives all images the same size.")
        scaling = tuple(self.factor), tuple(self.offset)
        return Program(tuple(self.steps), self.size, not self.whole, *scaling, tail=tuple(self.tail))

    def head(self, rest: int, reason: str) -> Program:
        """Return the program of the steps so far; torchvision does the transforms from position `rest` on."""
        return Program(tuple(self.steps), self.size, False, rest=rest, rest_kind=self.kind, reason=reason)
