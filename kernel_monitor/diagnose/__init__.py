"""What the measurements say: stretches between switches, percentiles, and the strip. NumPy only."""

from __future__ import annotations

from .limits import allowed_cores, limits_note, memory_note
from .measured import Measured, measure
from .strip import strip
from .switches import Comparison, compare, switches
from .tables import QUANTILES, Line, Segment, percentiles, segments

__all__ = [
    "QUANTILES",
    "Comparison",
    "Line",
    "Measured",
    "Segment",
    "allowed_cores",
    "compare",
    "limits_note",
    "measure",
    "memory_note",
    "percentiles",
    "segments",
    "strip",
    "switches",
]
