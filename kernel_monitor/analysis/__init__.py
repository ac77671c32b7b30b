"""The analysis of what was measured, with NumPy only: what a session's rows, steps and events say about its loops.

In: `store.Snapshot`, or the newest `store.Rows` with a `StepTable`. Out: `results.Analysis`. Read `session_analysis.py`
first (`analyse`, step by step), then `segments.py` (what is judged), `counted_steps.py` (which steps count),
`verdict.py` (what a loop is bound by), `decision.py` with `advice.py` (what to do), `rules/` (single faults), and
`live_segment.py` (the same while the loop runs).
"""

from __future__ import annotations

from .aggregates import Measured, measure
from .changes import change
from .live_segment import live_verdict
from .machine_limits import allowed_cores, limits_note, memory_note
from .session_analysis import analyse
from .strip import strip
from .switch_comparison import SwitchComparison, last_comparison
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
