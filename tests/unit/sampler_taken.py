"""A real sampler, and everything that it sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernel_monitor.sample.sampler_client import SamplerClient

ROOT = Path(__file__).resolve().parents[2]


def wait_for(done: Callable[[], object], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"it did not come about in {seconds:g} s"
        time.sleep(0.01)


class Taken:
    """What a sampler sent, in its order, and the client that read it."""

    def __init__(self, interval: float, **options: Any) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.frames: list[tuple[float, int, dict[str, float]]] = []
        self.notices: list[dict[str, Any]] = []
        self.exits: list[str] = []
        self.client = SamplerClient(
            interval, self.hellos.append, self._frame, self.notices.append, self.exits.append, **options
        )

    def _frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        names = [series["name"] for series in self.hellos[-1]["series"]]
        self.frames.append((stamp, missed, dict(zip(names, values, strict=True))))

    def more(self, frames: int) -> None:
        wanted = len(self.frames) + frames
        wait_for(lambda: len(self.frames) >= wanted)


@contextmanager
def running(interval: float = 0.1, **options: Any) -> Iterator[Taken]:
    taken = Taken(interval, **options)
    taken.client.start()
    try:
        taken.more(5)
        yield taken
    finally:
        taken.client.stop()
