"""The former name of `kernel_monitor.analysis`, kept for `from kernel_monitor.diagnose import analyse`."""

from __future__ import annotations

from .analysis import analyse

__all__ = ["analyse"]
