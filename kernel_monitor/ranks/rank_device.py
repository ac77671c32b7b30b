"""Which GPU a rank works on, from torch as it is: torch is not imported for it, and no context is made."""

from __future__ import annotations

import sys


def device_uuid() -> str:
    """The UUID of this process's GPU, as torch writes it; empty while none is known.

    It is the GPU on which torch has allocated the most: `torch.cuda.current_device` is each thread's own, and loops
    that only move their model (`model.to(f"cuda:{rank}")`) leave it at 0.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return ""
        allocated = [int(cuda.memory_allocated(k)) for k in range(cuda.device_count())]
        if not any(allocated):
            return ""
        found = cuda.get_device_properties(allocated.index(max(allocated)))
        return without_prefix(str(getattr(found, "uuid", "")))
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):  # half imported, or without CUDA
        return ""


def without_prefix(uuid: str) -> str:
    """A UUID as torch and NVML have in common: NVML's begins with `GPU-`."""
    return uuid.removeprefix("GPU-").lower()
