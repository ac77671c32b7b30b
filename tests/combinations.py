"""Combinations of the values of several parameters: every pair of values, or the whole product.

`make test` tries every pair of values at least once; PRODUCTS=long tries the whole product, as `make test-long` does.
A module that tries fewer cases by other means asks `LONG`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

LONG = os.environ.get("PRODUCTS") == "long"


def combinations(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return tuples of a value of each axis, always the same ones, in the order of the product."""
    product = list(itertools.product(*(range(len(axis)) for axis in axes)))
    return [tuple(axis[k] for axis, k in zip(axes, one, strict=True)) for one in (product if LONG else _pairs(product))]


def _pairs(product: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Choose those with which every pair occurs: at each time the one with the most pairs that are missing."""

    def of(one: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(one), 2))

    missing = set[tuple[tuple[int, int], ...]]().union(*map(of, product))
    chosen: list[tuple[int, ...]] = []
    while missing:
        chosen.append(max(product, key=lambda one: len(of(one) & missing)))
        missing -= of(chosen[-1])
    return sorted(chosen)
