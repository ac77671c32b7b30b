"""Probes of the machine without its GPUs: cores, memory, disks, network, limits, and the kernel's processes.

Internal: no part of the public interface.
"""

from __future__ import annotations
