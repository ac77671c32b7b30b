"""What an operation on pixels is to the engines, and when it is applied to a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..draws import Floats, Ints, UInt64s, uniforms

Bools = npt.NDArray[np.bool_]
Fed = dict[str, npt.NDArray[np.int32] | npt.NDArray[np.float32]]


class Graph:
    """The DALI pipeline that is being defined, with DALI's operators and types.

    Only here is DALI imported: the steps are read where there is none.

    Args:
        device: number of the CUDA device, None for the CPU.
    """

    def __init__(self, device: int | None) -> None:
        from nvidia.dali import fn, types

        self.fn, self.types = fn, types
        self.device = "cpu" if device is None else "gpu"  # where images are

    def fed(self, name: str, ndim: int, dtype: str = "INT32") -> Any:
        """Return the node of an input that is fed for each sample."""
        return self.fn.external_source(name=name, dtype=getattr(self.types, dtype), ndim=ndim)


@dataclass(frozen=True)
class Step:
    """One operation with explicit parameters, on 8-bit RGB pixels [height, width, 3] unless noted otherwise."""

    operation: int  # number of the transform, from which its random numbers are drawn

    @property
    def region(self) -> bool:
        """Whether the inputs `start<k>` and `shape<k>` name a part inside the image.

        A decoder may then decode just that, and the step is not built.
        """
        return False

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        """Return the inputs of n samples by name, and the images' sizes after the step.

        Args:
            k: number of the step in its program; input names end with it.
            keys: uint64[n], of the samples.
            sizes: int64[n, 2], height and width of the images before the step, pixels.
        """
        raise NotImplementedError

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        """Return what each sample draws, in the form of `Injection.drawn`; here None, for a step that is not random."""
        return [None] * len(keys)

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        """Return the DALI node of the step's result."""
        raise NotImplementedError


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


def coins(gates: Gates, keys: UInt64s) -> list[Any]:
    """What samples draw for a transform that draws only whether it is applied: the last gate is its own."""
    return where_open(gates[:-1], keys, gates[-1].open(keys).tolist())


def int32(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """As DALI takes integers."""
    return np.ascontiguousarray(values, dtype=np.int32)


def float32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """As DALI takes numbers."""
    return np.ascontiguousarray(values, dtype=np.float32)


def between(uniform: Floats, low: float, high: float) -> list[float]:
    """Uniform numbers from `low` to `high`, rounded to float32, as DALI and torchvision both take them."""
    return float32(low + (high - low) * uniform).astype(np.float64).tolist()  # type: ignore[no-any-return]
