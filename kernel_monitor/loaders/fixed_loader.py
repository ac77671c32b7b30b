"""A DataLoader that no engine can take over: its steps are watched, and every engine says why it cannot be chosen."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..errors import BackendUnavailable
from ..protocol.states import EngineState
from ..steps.watched_loader import SizedLoader
from .engines.backends import SPECS, Backend
from .engines.torch_engine import NAME as TORCHVISION


class FixedLoader(SizedLoader):
    """What `switchable` returns where there is no plan to follow; iterates and reads through as `watch_loader`'s."""

    def __init__(self, loader: DataLoader[Any], name: str | None, reason: str) -> None:
        engines = [
            EngineState(name=engine, available=False, reason=reason, confirm=None, note=None)
            for engine in SPECS
            if engine != TORCHVISION
        ]
        super().__init__(loader, name, engines)

    @property
    def backends(self) -> dict[str, Backend]:
        """Every engine, and why it cannot be chosen."""
        engines = self._kernel_monitor_source.engines
        return {engine["name"]: Backend(engine["available"], engine["reason"]) for engine in engines}

    def switch(self, name: str) -> None:
        """Nothing can be switched; raises `BackendUnavailable` with the reason."""
        reason = next(engine.reason for engine in self.backends.values())
        raise BackendUnavailable(f"{name} cannot be used: {reason}")


def why_fixed(loader: DataLoader[Any]) -> str | None:
    """Why a DataLoader's engine cannot be switched, a sentence; None where it can."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"{type(loader).__name__} iterates in a way of its own, so that there is no order of samples to follow."
    if isinstance(loader.dataset, IterableDataset):
        return (
            "The data set is iterable-style: its samples have no index, so that no other engine can take over between "
            "two of them. A map-style data set, with __getitem__ and __len__, can be switched."
        )
    if not hasattr(type(loader.dataset), "__len__"):
        return f"{type(loader.dataset).__name__} has no length, so that there is no plan of its samples."
    if loader.batch_sampler is None:
        return "The DataLoader gives single samples (batch_size=None), and engines take over between two batches."
    return None
