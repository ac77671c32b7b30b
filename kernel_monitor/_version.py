"""The version, where every layer may read it; ``package.json`` holds the same."""

from __future__ import annotations

__version__ = "0.1.0"
