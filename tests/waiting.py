"""Wait for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until(condition: Callable[[], Value], seconds: float = 20.0, say: Callable[[], object] | None = None) -> Value:
    """Return what the condition returns once that is true.

    Args:
        condition: is called again and again.
        seconds: after so long the test fails.
        say: gives what the failure shows.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {say() if say else condition}"
        time.sleep(0.02)
    return found
