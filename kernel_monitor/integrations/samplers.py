"""Asking the user's sampler, and showing it: the user's own, but not for another DataLoader to iterate.

A framework that makes a DataLoader anew from the attributes of one that it was given gets a plain one, which no
switch reaches and no monitor sees. It must take the order from here, so iterating it raises the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..errors import MonitorError

_ITERATORS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader")  # modules of iterators of DataLoaders


def attribute(sampler: Any, name: str, default: Any = None) -> Any:
    """An attribute of a sampler; `default` where it has none, or its class raises when it is asked."""
    try:
        return getattr(sampler, name, default)
    except Exception:  # noqa: BLE001 - the user's own class; plain torch would not ask
        return default


class ShownSampler:
    """Stands for the user's batch sampler: of the same class to `isinstance`, same attributes, length and batches."""

    __slots__ = ("_name", "_sampler")

    def __init__(self, sampler: Any, name: str) -> None:
        object.__setattr__(self, "_sampler", sampler)
        object.__setattr__(self, "_name", name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._sampler, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._sampler, name)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getitem__(self, place: Any) -> Any:
        return self._sampler[place]

    def __iter__(self) -> Iterator[Any]:
        # At the first batch, not before: torch's iterators cannot be taken apart when `iter` itself fails.
        if _in_dataloader():
            raise MonitorError(
                f"Another DataLoader was made from the attributes of the switchable loader {self._name}: it would "
                "load on its own, out of sight of the monitor and out of reach of every switch. Use the loader itself, "
                "loader.skip(n) to begin after its first n batches, or make the other DataLoader a batch sampler of "
                "its own."
            )
        yield from self._sampler

    def __eq__(self, other: object) -> bool:
        return bool(self._sampler == (other._sampler if type(other) is ShownSampler else other))

    def __hash__(self) -> int:
        return hash(self._sampler)

    def __repr__(self) -> str:
        return repr(self._sampler)

    def __reduce__(self) -> Any:
        return _same, (self._sampler,)


def _same(sampler: Any) -> Any:
    return sampler


def _in_dataloader() -> bool:
    """Whether an iterator of a DataLoader has called, at whatever depth: samplers are wrapped in samplers."""
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_ITERATORS):
            return True
        frame = frame.f_back
    return False
