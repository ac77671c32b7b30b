"""What makes a switchable loader fit into a framework; one file per framework.

These know torch and the framework, never a loader: `kernel_monitor.loaders` calls them.
"""

from __future__ import annotations
