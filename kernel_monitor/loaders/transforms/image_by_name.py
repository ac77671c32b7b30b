"""Transforms of albumentations: given an image by its name, they give it back by its name.

albumentations is never imported here: its classes are known by their names, and the user may import it later.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .ops.operation import Cursor, Injection, Seeded

NAME = "image"
_CORE = "albumentations.core."
_BASES = {f"{_CORE}transforms_interface.BasicTransform", f"{_CORE}composition.BaseCompose"}
_COMPOSE = f"{_CORE}composition.Compose"
_OTHERS = {f"{_CORE}composition.ReplayCompose"}
"""Give more than the image."""


def takes_name(transform: Any) -> bool:
    """Whether `transform(image=image)["image"]` is how a transform is used."""
    kind: Any = type(transform)
    return _is_named(kind)


@lru_cache(maxsize=1024)  # asked for each sample
def _is_named(kind: Any) -> bool:
    names = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    return not names.isdisjoint(_BASES) and names.isdisjoint(_OTHERS)


def members(transform: Any) -> list[Any] | None:
    """The transforms of a Compose that does nothing but call them in turn; None for all else."""
    kind = type(transform)
    if f"{kind.__module__}.{kind.__qualname__}" != _COMPOSE or transform.p < 1:
        return None
    more = transform.processors or transform.additional_targets or transform.save_applied_params
    inside = list(transform.transforms)
    return inside if not more and all(map(takes_name, inside)) else None


class ByName(Injection):
    """A transform that draws nothing; the plan decides what other kinds draw."""

    def begin(self, keys: Any) -> None:
        """Nothing to draw."""

    def __call__(self, image: Any) -> Any:
        return self.transform(image=image, force_apply=True)[NAME]


class SeededByName(Seeded):
    """Any other: called with its own generators, and the process's, seeded."""

    def __init__(self, operation: int, transform: Any, cursor: Cursor) -> None:
        super().__init__(operation, transform, cursor)
        self.transform = _positional(transform)


def _positional(transform: Any) -> Any:
    return lambda image: transform(image=image)[NAME]
