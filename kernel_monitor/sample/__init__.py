"""What is measured of the machine, by a process of its own.

`python -m kernel_monitor.sample` is that process; `kernel_monitor.sample.client` is the kernel's half. They share the
messages of `wire` and nothing else.
"""

from __future__ import annotations
