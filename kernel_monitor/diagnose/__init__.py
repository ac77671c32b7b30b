"""What the measurements say: stretches between switches, percentiles, and the strip. NumPy only."""

from __future__ import annotations

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
    "compare",
    "measure",
    "percentiles",
    "segments",
    "strip",
    "switches",
]
