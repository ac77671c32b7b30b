"""A transform of a data set, at the place where the data set keeps it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..transforms.catalogue import find
from ..transforms.chain import COMPOSES, held
from .calls import current


class TransformPoint:
    """Stands in for a transform while we call the data set; elsewhere it is that transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, *args: Any, **named: Any) -> Any:
        call = current()
        return self.transform(*args, **named) if call is None else call.transformed(self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name == "transform":  # while it is being unpickled or copied
            raise AttributeError(name)
        return getattr(self.transform, name)

    def __bool__(self) -> bool:
        return bool(self.transform)

    def same(self, other: TransformPoint) -> bool:
        """Whether it stands for the same transform."""
        return self.transform is other.transform


def is_transform(value: Any) -> bool:
    """Whether a value is a transform, for all that is known without calling it."""
    kind = type(value)
    if isinstance(value, type) or not callable(value):
        return False
    return (
        kind in COMPOSES
        or isinstance(value, nn.Module)
        or kind.__module__.startswith("torchvision.transforms")
        or find(value) is not None
        or bool(held(value))
    )
