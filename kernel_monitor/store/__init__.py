"""The measurements and events of a session, in bounded memory, for any number of readers. Open `store` first.

Internal: no part of the public interface.
"""

from __future__ import annotations

from .schema import Gpu, LoaderInfo, Schema, Series
from .snapshot import STEP, Rows, Snapshot, StepLog, StepTable
from .store import Store

__all__ = [
    "STEP", "Gpu", "LoaderInfo", "Rows", "Schema", "Series", "Snapshot", "StepLog", "StepTable", "Store",
]  # fmt: skip
