"""The widget half that lives in Python; the other half is ``widgets/src``."""

from __future__ import annotations

from .dashboard import Dashboard

__all__ = ["Dashboard"]
