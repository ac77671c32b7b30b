"""What was measured and what happened, in bounded memory, for any number of readers."""

from __future__ import annotations

from .schema import Gpu, LoaderInfo, Schema, Series
from .snapshot import Rows, Snapshot
from .steplog import StepLog
from .steps import STEP, StepTable
from .store import Store

__all__ = ["STEP", "Gpu", "LoaderInfo", "Rows", "Schema", "Series", "Snapshot", "StepLog", "StepTable", "Store"]
