"""A real sampler whose readings are kept, and /proc read beside it, to compare the two."""

from __future__ import annotations

import math
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.metrics import matching
from kernel_monitor.sample.sampler_client import SamplerClient

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """One reading of a series: the window (session's monotonic seconds) that it covers, and the value."""

    begin: float
    end: float
    value: float


class Watch:
    """Collects what a sampler sends."""

    def __init__(self) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self._frames: list[tuple[float, dict[str, float]]] = []
        self._arrived = threading.Condition()

    def take(self, monotonic: float, _missed: int, values: array[float]) -> None:
        names = [series["name"] for series in self.hellos[-1]["series"]]
        with self._arrived:
            self._frames.append((monotonic, dict(zip(names, values, strict=True))))
            self._arrived.notify_all()

    @property
    def host(self) -> dict[str, Any]:
        found: dict[str, Any] = self.hellos[-1]["host"]
        return found

    def names(self) -> set[str]:
        return {series["name"] for series in self.hellos[-1]["series"]}

    def wait(self, moment: float, series: str, timeout: float = 30.0) -> None:
        """Wait for a reading of `series` whose window ends after `moment`."""
        until = time.monotonic() + timeout
        with self._arrived:
            while not any(reading.end > moment for reading in self.readings(series)[-3:]):
                assert self._arrived.wait(until - time.monotonic()), f"no reading of {series} within {timeout} s"

    def readings(self, series: str, since: float = -math.inf) -> list[Reading]:
        """The readings whose windows begin after `since`, each once, though frames hold it."""
        group = group_of(series)
        found: list[Reading] = []
        for monotonic, values in list(self._frames):
            if series not in values or math.isnan(values[series]):
                continue
            end = monotonic - values[f"sample/{group}/age"]
            begin = end - values[f"sample/{group}/window"]
            # Ages are float32: of some seconds, right to a microsecond.
            if begin > since - 1e-3 and (not found or end > found[-1].end + 1e-3):
                found.append(Reading(begin, end, values[series]))
        return found


def group_of(series: str) -> str:
    """The group that a series is read with."""
    (entry,) = matching(series)
    return entry.group


def total(readings: list[Reading]) -> float:
    """A rate's readings over all their windows."""
    return math.fsum(reading.value * (reading.end - reading.begin) for reading in readings)


def contiguous(readings: list[Reading]) -> bool:
    """Whether each window begins where the one before ended."""
    return all(abs(b.begin - a.end) < 2e-3 for a, b in pairwise(readings))


@contextmanager
def watching(interval: float = 0.1) -> Iterator[Watch]:
    """A sampler of this process, once it has primed everything that is read once a second."""
    watch = Watch()
    client = SamplerClient(interval, watch.hellos.append, watch.take, watch.notices.append, watch.ends.append)
    client.start()
    try:
        watch.wait(-math.inf, "process/kernel/cpu")
        yield watch
        assert watch.ends == []
        assert watch.notices == []
    finally:
        client.stop()


class Beside:
    """A counter that is read on a thread of this process every 20 ms, with the time of each reading.

    Args:
        read: gives the counter.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._times: list[float] = []
        self._values: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Beside:
        self._thread.start()
        while not self._times:
            time.sleep(0.001)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            before = time.monotonic()
            value = self._read()
            self._values.append(value)
            self._times.append((before + time.monotonic()) / 2)
            if self._stop.wait(0.02):
                return

    def at(self, moment: float) -> float:
        """The counter at `moment`, between the readings about it."""
        after = bisect_right(self._times, moment)
        assert 0 < after < len(self._times), "read at another time"
        (a, b), (x, y) = self._times[after - 1 : after + 1], self._values[after - 1 : after + 1]
        return x + (y - x) * (moment - a) / (b - a)

    def growth(self, readings: list[Reading]) -> float:
        """How much the counter grew over the readings' windows together."""
        return self.at(readings[-1].end) - self.at(readings[0].begin)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def core_seconds(core: int) -> tuple[float, float]:
    """(busy, all) time of a core since boot."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            ticks = [int(field) for field in fields[:8]]
            return (sum(ticks) - ticks[3] - ticks[4]) * TICK_S, sum(ticks) * TICK_S
    raise AssertionError(f"core {core} is offline")
