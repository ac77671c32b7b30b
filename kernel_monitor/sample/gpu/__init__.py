"""The GPUs, read through NVML. Open `gpus` first: what frames and hello have of them."""

from __future__ import annotations
