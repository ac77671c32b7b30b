"""What the recorder tells of itself: its state, and what went wrong without ending it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TELL_S = 60.0
"""A slow disk is told about no more often."""


class States:
    """Tells `on_state`, whatever becomes of the one who listens.

    Args:
        on_state: called with `{"kind": "recorder", "level", "state", "path", "message"}`.
        path: the session's file.
    """

    def __init__(self, on_state: Callable[[dict[str, Any]], None], path: Path) -> None:
        self.path = path
        self._on_state = on_state
        self._complained: set[str] = set()
        self._lost = 0
        self._lost_at = float("-inf")

    def tell(self, state: str, level: str, message: str) -> None:
        """Tell a state, with a sentence for people."""
        with contextlib.suppress(Exception):  # nobody listens any more: the kernel has gone
            self._on_state(
                {"kind": "recorder", "level": level, "state": state, "path": str(self.path), "message": message}
            )

    def complain(self, kind: str, message: str) -> None:
        """Tell once about each kind of trouble that does not end the recording."""
        if kind not in self._complained:
            self._complained.add(kind)
            self.tell("recording", "warning", message)

    def lost(self, samples: int) -> None:
        """Tell how many samples found no room to wait in, `samples` since the beginning; once a minute at most."""
        now = time.monotonic()
        if samples > self._lost and now >= self._lost_at + TELL_S:
            message = f"The disk is too slow: {samples - self._lost} samples were not recorded and show as a gap."
            self._lost, self._lost_at = samples, now
            self.tell("recording", "warning", message)
