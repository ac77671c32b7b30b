"""The contents of a frame and of the hello: the series in their order, and the newest value of each."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .probe import NAN, Fact, Probe, ProbeReader, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .gpu.gpus import Gpus
    from .host.cpu import Cpu


_FACTS_S = 1.0  # period in which the facts are compared with those of the last hello


@dataclass(eq=False)
class FrameBuilder:
    """A reader of the probes that builds frames from their values. All methods are for the loop's thread.

    The series stand in this order: the probes read with the frames, the background's probes, the GPUs, and the times of
    the readings: `sample/interval`, and for each group that has series `sample/<group>/age` and
    `sample/<group>/window`. Series may appear and disappear.
    """

    cpu: Cpu  # it and its split are read on this thread, each at its period, rounded to whole frames
    background: Background  # the probes that are read on a thread of their own
    gpus: Gpus
    host: Mapping[str, Any]  # the constant facts about the host
    on_failure: Callable[[str, Exception], None]  # called with the name and the exception of each failed read
    interval: float  # seconds between frames

    def __post_init__(self) -> None:
        self._fast = [ProbeReader(probe, self.on_failure) for probe in (self.cpu, self.cpu.split)]
        self._count = 0
        self._gpu_groups: list[str] = []
        self._sent_facts: dict[str, Any] = {}
        self._facts_due = 0.0
        self.series: list[tuple[str, str]] = []
        self._readings = self._newest()
        self.set_interval(self.interval)
        self._lay_out()

    def set_interval(self, interval: float) -> None:
        """Plan the reads for a frame every `interval` seconds."""
        self.interval = interval
        for reader in self._fast:
            reader.every = max(1, round(reader.probe.period / interval))

    def prime(self, now: float) -> None:
        """Read the probes of the frames once, as the beginning of their rates."""
        for reader in self._fast:
            reader.read(now)

    def read(self, now: float) -> bool:
        """Read the probes due at `now`; return whether the series have changed."""
        for reader in self._fast:
            if self._count % reader.every == 0:
                reader.read(now)
        self._count += 1
        before, self._readings = self._readings, self._newest()
        return [reading.series for reading in self._readings] != [reading.series for reading in before]

    def values(self, now: float) -> list[float]:
        """Return the frame's values at `now`, in the order of `series`."""
        values: list[float] = []
        ages: list[float] = []
        for reading in self._readings:
            if reading.series:
                values += reading.values
                ages += (now - reading.stamp, reading.window)
        values += self.gpus.read()
        values.append(self.interval)
        values += ages
        times = {group: (age, window) for group, age, window in self.gpus.groups(now)}
        for group in self._gpu_groups:
            values += times.get(group, (NAN, NAN))
        return values

    def _lay_out(self) -> None:
        self._readings = self._newest()
        names = [*(reader.probe.group for reader in self._fast), *self.background.groups]
        groups = [group for group, reading in zip(names, self._readings, strict=True) if reading.series]
        series = [one for reading in self._readings for one in reading.series]
        series += self.gpus.series
        self._gpu_groups = [group for group, _, _ in self.gpus.groups(0.0)]
        series.append(("sample/interval", "s"))
        series += [(f"sample/{group}/{what}", "s") for group in groups + self._gpu_groups for what in ("age", "window")]
        self.series = series

    def facts_changed(self, now: float) -> bool:
        """Return whether the facts differ from those of the last hello; they are compared once in `_FACTS_S`."""
        if now < self._facts_due:
            return False
        self._facts_due = now + _FACTS_S
        return self._current_facts() != self._sent_facts

    def hello(self) -> dict[str, Any]:
        """Return a hello: the series of the frames from now on, and the facts about the machine."""
        self._lay_out()
        self._sent_facts = self._current_facts()
        return {
            "interval": self.interval,
            "series": [{"name": name, "unit": unit} for name, unit in self.series],
            **self._sent_facts,
            **self.gpus.hello(),
        }

    def _newest(self) -> list[Reading]:
        return [*(reader.newest for reader in self._fast), *self.background.readings()]

    def _current_facts(self) -> dict[str, Any]:
        reasons = self.background.reasons()
        for reader in self._fast:
            reasons |= reader.probe.reasons
        host = {**self.host, **self.background.newest_facts(), "reasons": reasons}
        return {"cpus": list(self.cpu.cores), "host": host}


# ---- The probes that are read on a thread of their own; frames carry the newest values.

_BEFORE_S = 0.1  # probes whose period is shorter than the frames' interval are read this long before a frame


@dataclass(eq=False)
class Background:
    """A thread named `slow` that reads probes and facts at their periods.

    Reads are due at multiples of their period since `zero`: at the same moments, so that the thread wakes seldom, and
    between the frames, which are taken at odd multiples of half an interval. A probe whose period is shorter than the
    frames' interval is read once per frame, shortly before it.
    """

    probes: Sequence[Probe]  # the host's metrics
    facts: Sequence[Fact]  # facts of the hello that may change
    on_failure: Callable[[str, Exception], None]  # called on that thread with the name and exception of a failed read
    interval: float  # seconds between frames
    zero: float  # monotonic time from which the periods are counted

    def __post_init__(self) -> None:
        self._readers = [ProbeReader(probe, self.on_failure) for probe in self.probes]
        self._facts_due = dict.fromkeys(self.facts, 0.0)
        self._found: dict[str, object] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="slow", daemon=True)

    def start(self) -> None:
        """Read everything once on the caller's thread, as the beginning of the rates; then start the thread."""
        self._round(time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end. A read that hangs ends with the process."""
        self._stopping = True
        self._wake.set()

    def replan(self, interval: float, zero: float) -> None:
        """Plan the reads anew: for another interval between frames, or after the machine slept."""
        self.interval, self.zero = interval, zero
        self._wake.set()

    @property
    def groups(self) -> list[str]:
        """The groups of the probes, in order."""
        return [reader.probe.group for reader in self._readers]

    def readings(self) -> list[Reading]:
        """Return the newest reading of each probe, in order; from any thread."""
        return [reader.newest for reader in self._readers]

    def newest_facts(self) -> dict[str, object]:
        """Return the facts by their keys."""
        return self._found

    def reasons(self) -> dict[str, str]:
        """Return why a metric, a group or a fact is absent."""
        reasons: dict[str, str] = {}
        for reader in self._readers:
            reasons |= reader.probe.reasons
        for fact in self.facts:
            reasons |= fact.reasons
        return reasons

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            due = min([*(reader.due for reader in self._readers), *self._facts_due.values()], default=now + 1.0)
            if not self._wake.wait(max(0.0, due - now)):
                self._round(time.monotonic())
                continue
            self._wake.clear()
            now = time.monotonic()
            for reader in self._readers:
                reader.due = self._next(now, reader.probe.period)

    def _round(self, now: float) -> None:
        """Read what is due."""
        for reader in self._readers:
            if now >= reader.due:
                reader.read(time.monotonic())
                reader.due = self._next(now, reader.probe.period)
        for fact, due in self._facts_due.items():
            if now >= due:
                self._facts_due[fact] = self._next(now, fact.period)
                try:
                    found = fact.read()
                except Exception as error:  # noqa: BLE001 - a fact that cannot be read must not end the metrics
                    self.on_failure(fact.key, error)
                else:
                    self._found = {**self._found, fact.key: found}

    def _next(self, now: float, period: float) -> float:
        """Return the next due moment at least half a period away: rates over less are mostly noise."""
        first = self.zero
        if self.interval > period:
            period = self.interval
            first += max(0.25 * period, 0.5 * period - _BEFORE_S)
        return first + math.ceil((now - first) / period + 0.5 - 1e-9) * period
