"""The GPUs, read through NVML. First: `gpus`, which gives the frames and the hello their GPU parts.

Internal: no part of the public interface.
"""

from __future__ import annotations
