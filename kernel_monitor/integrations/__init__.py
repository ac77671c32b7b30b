"""Adapters of a switchable loader to frameworks; one file per framework.

These know torch and the framework, never a loader: `kernel_monitor.loaders` calls them.

Internal: no part of the public interface.
"""

from __future__ import annotations
