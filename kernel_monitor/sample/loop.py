"""The sampler's clock: absolute deadlines, one frame each, and the end when the kernel has gone."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import process, wire
from .probe import NAN, Probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .gpu import Gpus
    from .pipes import Input, Output

CHECK_S = 1.0
"""How often the sampler looks whether its parent still runs."""


class Parent(NamedTuple):
    """The process that the sampler lives for: its number and when it began (`process.start_of`)."""

    pid: int
    start: float


class _Part(NamedTuple):
    """Where a probe's values stand in a frame, and in which frames it is read."""

    probe: Probe
    every: int
    start: int
    stop: int


class Loop:
    """Samples until its end.

    Deadline k is `zero + (k + 1/2) * interval` by the monotonic clock: in the middle of a heatmap's column, so that a
    sample a little early or late stays in its own, after a restart too. A frame that cannot be taken within half an
    interval of its deadline is not taken: the next one says how many were missed, and no two come closer than half an
    interval.

    Args:
        interval: seconds between deadlines.
        zero: monotonic time from which the intervals are counted, in seconds.
        source: the pipe from the kernel; its end ends the loop.
        sink: the pipe to the kernel.
        probes: what is measured, besides GPUs, in the order of the series.
        gpus: the GPUs, last in the order of the series.
        facts: `cpus` and `host` of the hello.
        parent: whose end ends the loop; None for nobody's.
    """

    def __init__(
        self,
        interval: float,
        zero: float,
        source: Input,
        sink: Output,
        probes: Sequence[Probe],
        gpus: Gpus,
        facts: Mapping[str, Any],
        parent: Parent | None,
    ) -> None:
        self._interval = interval
        self._zero = zero
        self._source = source
        self._sink = sink
        self._probes: list[Probe] = [*probes, gpus]
        self._gpus = gpus
        self._facts = facts
        self._parent = parent
        self._complaints: set[tuple[str, str]] = set()
        self._parts: list[_Part] = []
        self._values: list[float] = []
        self._encoder = wire.FrameEncoder(0)
        self._check_due = 0.0
        self._count = 0
        self._missed = 0

    def run(self) -> str:
        """Sample until the pipe or the parent ends; returns which.

        Raises:
            OSError: nobody reads the frames any more.
        """
        self._greet()
        now = time.monotonic()
        self._read(now, prime=True)  # rates count from here
        # Half an interval at least before the first deadline: a rate over less is mostly noise.
        start = self._zero + (math.ceil((now - self._zero) / self._interval) - 0.5) * self._interval
        tick = 0
        while True:
            tick += 1
            ended = self._sleep_until(start + tick * self._interval)
            if ended:
                return ended
            late = round((time.monotonic() - start) / self._interval) - tick
            if late > 0:
                self._missed += late
                tick += late
                ended = self._sleep_until(start + tick * self._interval)
                if ended:
                    return ended
            self._sample()

    def _sleep_until(self, deadline: float) -> str:
        """Sleep, look after the parent and the commands meanwhile; why it is time to end, or nothing."""
        while True:
            now = time.monotonic()
            if now >= self._check_due:
                self._check_due = now + CHECK_S
                if self._parent is not None and not process.is_alive(self._parent.pid, self._parent.start):
                    return "the parent has ended"
            left = deadline - now
            if left <= 0:
                return ""
            if not self._source.wait(min(left, CHECK_S)):
                return "the pipe has ended"
            for line in self._source.lines():
                self._notice("warning", f"the sampler knows no such command: {line[:80]!r}")

    def _sample(self) -> None:
        stamp = time.monotonic()
        self._read(stamp)
        changes = self._gpus.refresh(stamp)
        if changes:
            for text in changes:
                self._notice("warning", text)
            self._greet()
        if self._sink.send(self._encoder.encode(stamp, self._missed, self._values)):
            self._missed = 0
        else:
            self._missed += 1

    def _read(self, now: float, *, prime: bool = False) -> None:
        """Read the probes that are due."""
        count, values = self._count, self._values
        self._count += 1
        for probe, every, start, stop in self._parts:
            if prime or count % every == 0:
                try:
                    values[start:stop] = probe.read(now)
                except Exception as error:  # noqa: BLE001 - one thing that cannot be measured must not end the others
                    values[start:stop] = [NAN] * (stop - start)
                    self._complain(type(probe).__name__, error)

    def _complain(self, name: str, error: Exception) -> None:
        """Tell once about each kind of failure of a probe."""
        kind = type(error).__name__
        if (name, kind) not in self._complaints:
            self._complaints.add((name, kind))
            self._notice("warning", f"{name} cannot be measured: {kind}: {error}")

    def _notice(self, level: str, text: str) -> None:
        self._sink.send(wire.encode_json(wire.NOTICE, {"level": level, "message": text}), keep=True)

    def _greet(self) -> None:
        """Lay out the frames by the series that there are, and say so."""
        parts: list[_Part] = []
        series: list[tuple[str, str]] = []
        for probe in self._probes:
            start = len(series)
            series += probe.series
            every = max(1, round(probe.period / self._interval))
            parts.append(_Part(probe, every, start, len(series)))
        self._parts = parts
        # Only the GPUs at the end may change: what is before them keeps its place and the values it holds.
        kept = self._values[: len(series)]
        self._values = kept + [NAN] * (len(series) - len(kept))
        self._encoder = wire.FrameEncoder(len(series))
        hello = {
            "interval": self._interval,
            "series": [{"name": name, "unit": unit} for name, unit in series],
            **self._facts,
            **self._gpus.hello(),
        }
        self._sink.send(wire.encode_json(wire.HELLO, hello), keep=True)
