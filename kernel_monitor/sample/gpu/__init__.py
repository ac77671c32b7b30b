"""GPUs, as NVML tells of them."""

from __future__ import annotations
