"""Base classes and helpers of all probes: reading them, keeping the newest reading, and the host's `/proc`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

# ---- Probes and facts, and the newest reading of each.

NAN = float("nan")

SLOW_PERIOD_S = 0.5  # period of slowly changing metrics; their values are held in between


class Probe:
    """Metrics of the host that are read together, at one moment. A read may replace `series` and `reasons`."""

    group: str  # its name (docs/metrics.md)
    period: float  # seconds between two reads
    series: Sequence[tuple[str, str]] = ()  # (name, unit) of each value, in order
    reasons: Mapping[str, str] = MappingProxyType({})  # {name: why that metric, or the whole group, is absent}

    def read(self, now: float, /) -> Sequence[float]:
        """Return the values at `now` (`time.monotonic()`), one per series, NaN where there is none.

        Rates cover the time since the last read; the first read has none. The next read may reuse the sequence. If this
        raises, the group's values are missing, and the exception is reported once.
        """
        raise NotImplementedError


class Fact:
    """A fact of the hello about the host that may change: a container's limits, the cores' places."""

    key: str  # its name in the hello's `host`
    period: float  # seconds between two reads
    reasons: Mapping[str, str] = MappingProxyType({})  # {name: why that fact, or a part of it, is unknown}

    def read(self) -> object:
        """Return the fact as JSON values; a hello is sent again when it differs from the last one."""
        raise NotImplementedError


class Reading(NamedTuple):
    """The result of one read of a probe; immutable, so that other threads may use it."""

    series: Sequence[tuple[str, str]]  # (name, unit) of each value
    values: Sequence[float]  # one per series
    stamp: float  # `time.monotonic()` when it was read
    window: float  # seconds since the read before; NaN for the first


class ProbeReader:
    """A probe, its newest reading, and its next due time; calls `on_failure(group, exception)` when a read raises."""

    def __init__(self, probe: Probe, on_failure: Callable[[str, Exception], None]) -> None:
        self.probe = probe
        self.due = 0.0
        self.every = 1  # frames between two reads, for a probe that is read with the frames
        self.newest = Reading(probe.series, [NAN] * len(probe.series), NAN, NAN)
        self._on_failure = on_failure

    def read(self, now: float) -> None:
        """Read the probe at `now` (`time.monotonic()`)."""
        try:
            values = self.probe.read(now)
        except Exception as error:  # noqa: BLE001 - a metric that cannot be measured must not end the others
            values = [NAN] * len(self.probe.series)
            self._on_failure(self.probe.group, error)
        self.newest = Reading(self.probe.series, list(values), now, now - self.newest.stamp)


class Rates:
    """A calculator of rates: growth per second of counters that only grow."""

    def __init__(self) -> None:
        self._last: Sequence[int] | None = None
        self._at = 0.0

    def update(self, now: float, counters: Sequence[int]) -> list[float]:
        """Return the rates since the last update; NaN at the first update, and for a counter that was reset."""
        last, elapsed = self._last, now - self._at
        self._last, self._at = counters, now
        if last is None or elapsed <= 0:
            return [NAN] * len(counters)
        return [(new - old) / elapsed if new >= old else NAN for new, old in zip(counters, last, strict=True)]


# ---- The host's `/proc` and `/sys`: their paths, and functions that read their small files.

ROOT = Path(os.environ.get("KERNEL_MONITOR_ROOT") or "/")
PROC = ROOT / "proc"
SYS = ROOT / "sys"
LINUX = sys.platform.startswith("linux")
UNREADABLE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Exceptions of `read` where the kernel has no such file, or does not show it to this user."""
_PIECE = 1 << 14

if Path("/") != ROOT:
    psutil.PROCFS_PATH = str(PROC)


def read(path: str) -> bytes:
    """Return the file's content, in a third of the time of `Path.read_bytes`; hundreds of files are read each second.

    Raises:
        ProcessLookupError: the file belonged to a process that has ended.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        data = os.read(file, _PIECE)
        while piece := os.read(file, _PIECE):  # a read may give less than there is
            data += piece
        return data
    finally:
        os.close(file)


def read_failure(path: object) -> str:
    """Return a sentence on why a file cannot be read; empty where it can."""
    try:
        read(str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


def parse_list(text: str) -> list[int]:
    """Return the numbers of a list in Linux' notation: `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found
