"""The GPUs, read through NVML. First: `gpus`, which gives the frames and the hello their GPU parts."""

from __future__ import annotations
