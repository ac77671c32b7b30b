"""Where an order comes from: the random generators that a sampler may draw from, and their states as plain values.

Three belong to the process (torch's, Python's and numpy's default); the others are attributes of the DataLoader and of
its samplers. A state is kept as text, so that it goes through JSON, pickle and `torch.save` alike.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..integrations.samplers import attribute
from .attributes import attributes


def samplers(loader: DataLoader[Any]) -> Iterator[tuple[str, Any]]:
    """The batch sampler and what it wraps (`.sampler`, and so on inwards), each with its place as text."""
    place, sampler = "batch_sampler", loader.batch_sampler
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield place, sampler
        seen.add(id(sampler))
        place, sampler = f"{place}.sampler", attribute(sampler, "sampler")


def own(loader: DataLoader[Any]) -> dict[str, torch.Generator]:
    """The generators that are attributes of a loader or of its samplers, by their place."""
    found = {} if loader.generator is None else {"generator": loader.generator}
    for place, sampler in samplers(loader):
        for name, value in attributes(sampler).items():
            if type(value) is torch.Generator:
                found[f"{place}.{name}"] = value
    return found


class Defaults(NamedTuple):
    """The states of the process's default generators."""

    torch: torch.Tensor  # of torch's CPU generator, uint8[5056]
    python: tuple[Any, ...]  # of `random`, what `random.getstate()` gives
    numpy: dict[str, Any]  # of `numpy.random`, what `numpy.random.get_state(legacy=False)` gives

    @classmethod
    def now(cls) -> Defaults:
        """The states as they are."""
        return cls(torch.get_rng_state(), random.getstate(), dict(np.random.get_state(legacy=False)))  # noqa: NPY002 - what samplers use

    def restore(self) -> None:
        """Put the process's generators into these states."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002

    def same(self, other: Defaults) -> bool:
        """Whether both would draw the same numbers."""
        return self.plain() == other.plain()

    def plain(self) -> dict[str, Any]:
        """As texts and numbers."""
        version, words, gauss = self.python
        return {"torch": pack(self.torch), "python": [version, list(words), gauss], "numpy": _listed(self.numpy)}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Defaults:
        """The opposite of `plain`."""
        version, words, gauss = plain["python"]
        return cls(unpack(plain["torch"]), (version, tuple(words), gauss), dict(plain["numpy"]))


class Apart:
    """An iterator that draws from default generators of its own; the process's are left as they were.

    For an order that is drawn again: it must come out as it did, and the training must not notice.
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
        """Iterate over `batches`, each step with these generators."""
        self._batches = batches
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self:
            return next(self._batches)


def pack(state: torch.Tensor) -> str:
    """A generator's state, a uint8 tensor, as text (base 64)."""
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def unpack(text: str) -> torch.Tensor:
    """The opposite of `pack`."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(inner) for key, inner in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
