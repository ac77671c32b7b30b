"""The steps of all loaders, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

STEP = np.dtype(
    [
        ("loader", "<i4"),
        ("end", "<f8"),
        ("epoch", "<u4"),
        ("batch", "<u4"),
        ("images", "<u4"),
        ("wait", "<f4"),
        ("step", "<f4"),
        ("copy", "<f4"),
        ("forward", "<f4"),
        ("backward", "<f4"),
        ("optimizer", "<f4"),
        ("flags", "<u1"),
    ]
)
"""`steps.records.Step` with `loader` before it: the place of the loader's id in `StepTable.loaders`."""


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps in the order of their ends.

    Attributes:
        loaders: ids of the loaders, in the order of the numbers in `rows["loader"]`.
        rows: `STEP`[n]; `end` in session s, durations in s, NaN where something was not measured.
        dropped: steps that were not kept.
    """

    loaders: tuple[str, ...] = ()
    rows: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=STEP))
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, loader: str, start: float = -np.inf, end: float = np.inf) -> npt.NDArray[Any]:
        """The steps of one loader that ended in `(start, end]`."""
        if loader not in self.loaders:
            return self.rows[:0]
        low, high = np.searchsorted(self.rows["end"], [start, end], side="right")
        part = self.rows[low:high]
        found: npt.NDArray[Any] = part[part["loader"] == self.loaders.index(loader)]
        return found
