"""GPUs asked by hand, with a clock that the test sets: no thread, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.nvml import answers
from kernel_monitor.sample.gpu import gauges
from kernel_monitor.sample.gpu.gpus import NvmlSession
from kernel_monitor.sample.gpu.nvml import open_devices, sentences

OWN = frozenset({4001, 4002})
"""The kernel's process tree."""


class Clock:
    """Wall clock and monotonic clock, both standing still until `pass_time`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall = 1_800_000_000.0
        self.monotonic = 500.0
        times = SimpleNamespace(time=lambda: self.wall, sleep=lambda _: None)
        patch.setattr(answers, "time", times)
        patch.setattr(gauges, "time", times)
        # As on a machine of one's own, wherever the tests run.
        patch.setattr(gauges, "in_first_namespace", lambda: True)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


class Asked:
    """All questions about all GPUs that NVML lists now, asked when the test says so."""

    def __init__(self, clock: Clock, pids: frozenset[int] | None = OWN) -> None:
        self.clock = clock
        self.notices: list[dict[str, Any]] = []
        self.session = NvmlSession(open_devices(), 0.1, pids, self.notices.append)

    def round(self, seconds: float = 0.0) -> list[str]:
        """After `seconds`, ask what is due; returns what went missing or came back."""
        self.clock.pass_time(seconds)
        desks = [desk for thread in self.session.threads for desk in thread.tables]
        return sentences(change for desk in desks for change in desk.ask(self.clock.monotonic))

    def values(self, gpu: int = 0) -> dict[str, float]:
        _, desks = self.session.tables[gpu]
        return {
            part: value
            for _, desk in desks
            for (part, _), value in zip(desk.table.parts, desk.table.values, strict=True)
        }

    def reasons(self, gpu: int = 0) -> dict[str, str]:
        return {part: words for _, desk in self.session.tables[gpu][1] for part, words in desk.reasons.items()}

    def reading(self, group: str, gpu: int = 0) -> tuple[float, float]:
        """(age, window) of a group, in s."""
        reading = next(desk.times[group] for _, desk in self.session.tables[gpu][1] if group in desk.times)
        return self.clock.monotonic - reading.at, reading.window


Ask = Callable[..., Asked]
