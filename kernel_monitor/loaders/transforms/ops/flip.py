"""Mirror images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..draws import UInt64s
from .operation import Bools, Fed, Gates, Graph, Ints, int32, opened, where_open


@dataclass(frozen=True)
class Mirror:
    """A flip where all `gates` are open: left to right, or upside down if `vertical`. The last gate is its own."""

    operation: int
    gates: Gates
    vertical: bool = False
    region = False

    def flipped(self, keys: UInt64s) -> Bools:
        """bool[n], which samples are mirrored."""
        return opened(self.gates, keys)

    def arrays(self, k: int, keys: UInt64s, sizes: Ints) -> tuple[Fed, Ints]:
        return {f"mirror{k}": int32(self.flipped(keys))}, sizes

    def drawn(self, keys: UInt64s, _sizes: Ints) -> list[Any]:
        return where_open(self.gates[:-1], keys, self.gates[-1].open(keys).tolist())

    def build(self, graph: Graph, k: int, image: Any) -> Any:
        from nvidia.dali import fn

        mirror = graph.fed(f"mirror{k}", 0)
        return fn.flip(image, horizontal=0, vertical=mirror) if self.vertical else fn.flip(image, horizontal=mirror)
