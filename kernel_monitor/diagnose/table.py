"""What is analysed: rows over named columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..store import Schema


class Table(Protocol):
    """What is read of `store.Rows` and of `store.Snapshot`."""

    @property
    def schema(self) -> Schema: ...

    @property
    def time(self) -> npt.NDArray[np.float64]: ...

    @property
    def values(self) -> npt.NDArray[np.float32]: ...
