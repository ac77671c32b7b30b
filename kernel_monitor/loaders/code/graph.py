"""Writes a chain of DALI's operators as lines of Python: `Step.build` calls it as it calls DALI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from ..transforms.operation import Graph

WIDTH = 88  # characters of a line, as ruff formats by itself
_INDENT = "    "


class Text(str):
    """A piece of code, which `literal` leaves as it is."""

    __slots__ = ()


def literal(value: Any) -> str:
    """Return the code of a value."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, np.generic):
        return literal(value.item())
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float):
        near = round(value, 9)  # 123.675, not 123.67500000000001
        return repr(near if abs(value - near) <= 1e-12 * abs(value) else value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(literal, value))
        left, right = "[]" if isinstance(value, list) else "()"
        return f"{left}{inside}{',' if len(value) == 1 and left == '(' else ''}{right}"
    return repr(value)


def quoted(text: str) -> str:
    """Return a text in quotes, double ones where it has none, as ruff prefers them."""
    shown = repr(text)
    return shown if '"' in shown or "\\" in shown else f'"{shown[1:-1]}"'


def laid_out(head: str, arguments: Sequence[str], tail: str = ")", indent: int = 1) -> list[str]:
    """Return the lines of a call, or of a collection, as ruff breaks them: on one line, else indented, else each alone.

    `head` ends with the opening bracket, `tail` begins with the closing one; `indent` is in levels.
    """
    space = _INDENT * indent
    inside = ", ".join(arguments)
    if len(space + head + inside + tail) <= WIDTH:
        return [f"{space}{head}{inside}{tail}"]
    deeper = space + _INDENT
    brackets_only = head[-1] != "(" or head in ("(", "return (")  # collections are given one element a line
    if not brackets_only and len(deeper + inside) <= WIDTH:
        return [f"{space}{head}", f"{deeper}{inside}", f"{space}{tail}"]
    return [f"{space}{head}", *(f"{deeper}{argument}," for argument in arguments), f"{space}{tail}"]


class _Types:
    def __getattr__(self, name: str) -> Text:
        if name.startswith("_"):
            raise AttributeError(name)
        return Text(f"types.{name}")


class _Function:
    """A function of DALI's, by its name from `fn` on."""

    def __init__(self, graph: WrittenGraph, name: str) -> None:
        self._graph, self._name = graph, name

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Function(self._graph, f"{self._name}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Text:
        arguments = [*map(literal, args), *(f"{name}={literal(value)}" for name, value in named.items())]
        self._graph.lines += laid_out(f"images = {self._name}(", arguments)
        return Text("images")


class WrittenGraph(Graph):
    """A chain that is written as it is built.

    Args:
        device: `cpu` or `gpu`; see `Graph`.
        names: the names of some inputs in the code.

    Attributes:
        lines: the body of a function.
        inputs: the types of what it is fed, by the name in the code: `INT32`, `UINT8` or `FLOAT`.
    """

    def __init__(self, device: str, names: Mapping[str, str] = MappingProxyType({})) -> None:
        self.fn: Any = _Function(self, "fn")
        self.types: Any = _Types()
        self.device, self.arguments_of_images = device, device == "cpu"
        self.lines: list[str] = []
        self.inputs: dict[str, str] = {}
        self._names = names

    def fed(self, name: str, ndim: int, dtype: str = "INT32") -> Any:
        name = self._names.get(name, name)
        if name not in self.inputs:
            self.inputs[name] = dtype
            arguments = [f"name={quoted(name)}", f"dtype=types.{dtype}", f"ndim={ndim}"]
            self.lines += laid_out(f"{name} = fn.external_source(", arguments)
        return Text(name)

    def beside_images(self, node: Any) -> Any:
        return Text(f"{node}.gpu()") if self.device == "gpu" else node
