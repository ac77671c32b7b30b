"""Demo data: a folder of photograph-like JPEGs for the quickstart and the benchmarks (needs NumPy and Pillow).

Internal but for the names in docs/interface.md.
"""

from __future__ import annotations

from .generate import demo_data

__all__ = ["demo_data"]
