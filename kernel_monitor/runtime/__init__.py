"""The monitor of this process, ``kernel_monitor.monitor``: sampler, store, loaders, recorder and pages, joined.

Internal: no part of the public interface.
"""

from __future__ import annotations

from .process_monitor import Monitor, monitor, open_session

__all__ = ["Monitor", "monitor", "open_session"]
