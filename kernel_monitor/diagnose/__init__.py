"""What the measurements say: the strip of a switch, and the analysis of a session (`analyse`). NumPy only."""

from __future__ import annotations

from .analysis import analyse
from .changes import change
from .comparison import SwitchComparison, last_comparison
from .limits import allowed_cores, limits_note, memory_note
from .live import live_verdict
from .measured import Measured, measure
from .strip import strip
from .switches import Comparison, compare, switches

__all__ = [
    "Comparison",
    "Measured",
    "SwitchComparison",
    "allowed_cores",
    "analyse",
    "change",
    "compare",
    "last_comparison",
    "limits_note",
    "live_verdict",
    "measure",
    "memory_note",
    "strip",
    "switches",
]
