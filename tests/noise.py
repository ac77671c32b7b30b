"""How late this machine is by itself: no test's bar is tighter than that."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import numpy as np

TICK_S = 0.02


class BareTimer:
    """A thread that sleeps until the next of its ticks and notes how late it woke, while the block runs."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._done.is_set():
            due = time.monotonic() + TICK_S
            time.sleep(TICK_S)
            self._late.append(time.monotonic() - due)

    def __enter__(self) -> BareTimer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def late(self, percentile: float) -> float:
        """Milliseconds between a tick and waking, at a percentile of all of them."""
        return 1e3 * float(np.percentile(self._late, percentile))
