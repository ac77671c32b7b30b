"""What an operation on pixels is to the engines, and when it is applied to a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..draws import Floats, UInt64s, uniforms

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Fed = dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]]


class Graph(Protocol):
    """The DALI pipeline that is being defined. `device` is where images are: `cpu` or `gpu`."""

    device: str

    def fed(self, name: str, ndim: int, dtype: Any = ...) -> Any:
        """Return the node of an input that is fed for each sample (DALI's INT32 by default)."""


class Step(Protocol):
    """One operation with explicit parameters, on 8-bit RGB pixels [height, width, 3] unless noted otherwise.

    Attributes:
        operation: number of the transform, from which its random numbers are drawn.
        region: whether the inputs `start<k>` and `shape<k>` name a part inside the image, so that a decoder may
            decode just that; building the step is then left out.
    """

    @property
    def operation(self) -> int: ...

    @property
    def region(self) -> bool: ...

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        """Return the inputs of n samples by name, and the images' sizes after the step.

        Args:
            k: number of the step in its program; input names end with it.
            keys: uint64[n], of the samples.
            sizes: int64[n, 2], height and width of the images before the step, pixels.
        """

    def drawn(self, keys: UInt64s, sizes: Ints) -> list[Any]:
        """Return what each sample draws, in the form of `Injection.drawn`; nothing where the step is not random."""

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        """Return the DALI node of the step's result."""


class NotRandom:
    """A step that draws nothing."""

    region = False

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return [None] * len(keys)


@dataclass(frozen=True)
class Gate:
    """Chance of a transform: it is applied where its uniform number is at least `low` and less than `high`."""

    operation: int
    low: float
    high: float

    def open(self, keys: UInt64s) -> Bools:
        """bool[n], for which samples the transform is applied."""
        number = uniforms(keys, self.operation, 1)[:, 0]
        applied: Bools = (self.low <= number) & (number < self.high)
        return applied


Gates = tuple[Gate, ...]


def opened(gates: Gates, keys: UInt64s) -> Bools:
    """bool[n], where every gate is open."""
    applied = np.ones(len(keys), dtype=np.bool_)
    for gate in gates:
        applied &= gate.open(keys)
    return applied


def where_open(gates: Gates, keys: UInt64s, drawn: list[Any]) -> list[Any]:
    """`drawn` with None where a gate is closed."""
    return [value if is_open else None for value, is_open in zip(drawn, opened(gates, keys).tolist(), strict=True)]


def int32(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """As DALI takes integers."""
    return np.ascontiguousarray(values, dtype=np.int32)


def float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """As DALI takes numbers."""
    return np.ascontiguousarray(values, dtype=np.float32)


def between(uniform: Floats, low: float, high: float) -> list[float]:
    """Uniform numbers from `low` to `high`, rounded to float32, as DALI and torchvision both take them."""
    return float32(low + (high - low) * uniform).astype(np.float64).tolist()  # type: ignore[no-any-return]
