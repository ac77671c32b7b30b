"""Freed memory goes back to the system only when it is told to."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def trim() -> None:
    """Give the allocator's free pages back to the system, where it is glibc's.

    After an engine of DALI is dropped, 40 to 240 MB stay in the process otherwise. Takes a few ms.
    """
    function = _malloc_trim()
    if function is not None:
        function(0)


@cache
def _malloc_trim() -> Any:
    """glibc's malloc_trim(3); None elsewhere."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
