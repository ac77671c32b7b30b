"""Finds the expressions by which a data set's attributes give a sample's file, or another value of the sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..attributes import attributes
from ..data.structure import equal, form
from .graph import literal

_WIDEST = 16  # members of a row that are looked at


class Column(NamedTuple):
    """An expression with a value for each sample."""

    text: str
    values: tuple[Any, ...]  # of the samples that are known


def columns(dataset: Any, indices: Sequence[int], name: str = "dataset", index: str = "index") -> Iterator[Column]:
    """Yield the columns that a data set keeps: elements of its lists, arrays and tables, and members of these.

    Args:
        dataset: the data set.
        indices: of the known samples.
        name: the expression of the data set in the code.
        index: the expression of a sample's index.
    """
    for attribute, kept in attributes(dataset).items():
        if not attribute.isidentifier():
            continue
        rows, suffix = getattr(kept, "iloc", kept), ".iloc" if hasattr(kept, "iloc") else ""
        if not (suffix or isinstance(kept, (list, tuple, np.ndarray, torch.Tensor))):
            continue
        try:
            values = tuple(rows[one] for one in indices)
        except (LookupError, TypeError):
            continue
        text = f"{name}.{attribute}{suffix}[{index}]"
        yield Column(text, values)
        yield from _members(text, values)


def _members(text: str, values: tuple[Any, ...]) -> Iterator[Column]:
    first = values[0]
    keys: list[Any] = []
    if isinstance(first, (list, tuple)):
        keys = list(range(min(len(first), _WIDEST)))
    elif isinstance(first, Mapping) or hasattr(first, "to_dict"):
        keys = [key for key in list(first.keys())[:_WIDEST] if isinstance(key, (str, int))]
    for key in keys:
        try:
            yield Column(f"{text}[{literal(key)}]", tuple(value[key] for value in values))
        except (LookupError, TypeError):
            continue


def path_expression(known: Sequence[Column], paths: Sequence[str], dataset: Any, name: str = "dataset") -> str | None:
    """Return the expression of the samples' paths, such as `f"{dataset.root}/images/{dataset.ids[index]}.jpg"`.

    Returns None where no column has the part in which paths differ.
    """
    best: tuple[int, Column, str, str] | None = None
    for column in known:
        if not all(isinstance(value, (str, os.PathLike, int, np.integer)) for value in column.values):
            continue
        shown = [str(value) for value in column.values]
        found = _around(shown, paths)
        if found is not None and (best is None or len(shown[0]) > best[0]):
            best = len(shown[0]), column, *found
    if best is None:
        return None
    _, column, before, after = best
    if not before and not after:
        return column.text
    root = max(
        (
            (str(value), attribute)
            for attribute, value in attributes(dataset).items()
            if isinstance(value, (str, os.PathLike)) and str(value) and before.startswith(str(value))
        ),
        default=("", ""),
    )
    lead = _braces(before) if not root[0] else f"{{{name}.{root[1]}}}{_braces(before[len(root[0]) :])}"
    inside = column.text.replace('"', "'")
    return f'f"{lead}{{{inside}}}{_braces(after)}"'


def _braces(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("{", "{{").replace("}", "}}")


def _around(parts: Sequence[str], wholes: Sequence[str]) -> tuple[str, str] | None:
    """Return what is before and after each part in its whole, if that is the same for all."""
    if not all(parts) or len(set(parts)) < min(2, len(set(wholes))):
        return None
    first = wholes[0]
    start = first.rfind(parts[0])
    while start >= 0:
        before, after = first[:start], first[start + len(parts[0]) :]
        if all(f"{before}{part}{after}" == whole for part, whole in zip(parts, wholes, strict=True)):
            return before, after
        start = first.rfind(parts[0], 0, start + len(parts[0]) - 1)
    return None


def value_expression(
    known: Sequence[Column], values: Sequence[Any], indices: Sequence[int], dataset: Any, name: str, index: str
) -> str | None:
    """Return the expression of another value of the samples: their index, a column, or a tensor or a number of one."""

    def matches(found: Sequence[Any]) -> bool:
        return all(
            type(one) is type(value) and form(one) == form(value) and equal(one, value)
            for one, value in zip(found, values, strict=True)
        )

    if matches(indices):
        return index
    for column in known:
        for text, change in _CHANGES:
            try:
                if matches([change(value) for value in column.values]):
                    return text.format(column.text)
            except (TypeError, ValueError, RuntimeError):
                continue
        for attribute, kept in attributes(dataset).items():
            if isinstance(kept, Mapping):
                try:
                    if matches([kept[value] for value in column.values]):
                        return f"{name}.{attribute}[{column.text}]"
                except (LookupError, TypeError):
                    continue
    if all(isinstance(value, (str, int, float, bool, type(None))) for value in values) and len(set(values)) == 1:
        return literal(values[0]) if len(values) > 1 else None
    return None


_CHANGES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("{}", lambda value: value),
    ("int({})", int),
    ("float({})", float),
    ("str({})", str),
    ("torch.tensor({})", torch.tensor),
    ("torch.as_tensor({})", torch.as_tensor),
)
