"""Probes of the machine without its GPUs: cores, memory, disks, network, limits, and the kernel's processes."""

from __future__ import annotations
