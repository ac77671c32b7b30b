"""The analysis of a session's rows, steps and events, with NumPy only.

In: `store.Snapshot`, or the newest `store.Rows` with a `StepTable`. Out: `results.Analysis`. Read `session_analysis.py`
first (`analyse`, step by step), then `segments.py` (what is judged), `frames.py` (which steps count),
`verdict.py` (what a loop is bound by), `advice.py` (what to do), `rules/` (single faults), and
`live_verdict.py` (the same while the loop runs).

Internal but for the names in docs/interface.md.
"""

from __future__ import annotations

from .frames import allowed_cores
from .session_analysis import analyse
from .switch_comparison import switch_strip

__all__ = ["allowed_cores", "analyse", "switch_strip"]
