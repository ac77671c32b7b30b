"""What was measured and what happened, in bounded memory, for any number of readers."""

from __future__ import annotations

from .schema import Gpu, LoaderInfo, Schema, Series
from .snapshot import Rows, Snapshot
from .store import Store

__all__ = ["Gpu", "LoaderInfo", "Rows", "Schema", "Series", "Snapshot", "Store"]
