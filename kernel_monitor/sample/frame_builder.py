"""The contents of a frame and of the hello: the series in their order, and the newest value of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .probe import NAN, ProbeReader, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .gpu.gpus import Gpus
    from .host.cpu import Cpu
    from .slow_probes import Background

FACTS_S = 1.0  # how often the facts of the hello are compared with those that were sent


@dataclass(eq=False)
class FrameBuilder:
    """Reads what is due, and puts frames together. All methods are for the clock's thread.

    The order is: the probes that are read with the frames, those of the background, the GPUs, and the times of the
    readings: `sample/interval`, and for each group that has series `sample/<group>/age` and `sample/<group>/window`.
    Series may come and go.
    """

    cpu: Cpu  # it and its split are read on this thread, each at its period, rounded to whole frames
    background: Background  # the probes that are read beside it
    gpus: Gpus
    host: Mapping[str, Any]  # the constant facts about the host
    complain: Callable[[str, Exception], None]  # called with each failure, (name, error)
    interval: float  # seconds between frames

    def __post_init__(self) -> None:
        self._fast = [ProbeReader(probe, self.complain) for probe in (self.cpu, self.cpu.split)]
        self._count = 0
        self._gpu_groups: list[str] = []
        self._sent_facts: dict[str, Any] = {}
        self._facts_due = 0.0
        self.series: list[tuple[str, str]] = []
        self._readings = self._newest()
        self.set_interval(self.interval)
        self._lay_out()

    def set_interval(self, interval: float) -> None:
        """Frames come every `interval` seconds from now on."""
        self.interval = interval
        for reader in self._fast:
            reader.every = max(1, round(reader.probe.period / interval))

    def prime(self, now: float) -> None:
        """Read everything once, so that rates count from here."""
        for reader in self._fast:
            reader.read(now)

    def read(self, now: float) -> bool:
        """Read what is due at `now`; whether the series differ from those before."""
        for reader in self._fast:
            if self._count % reader.every == 0:
                reader.read(now)
        self._count += 1
        before, self._readings = self._readings, self._newest()
        return [reading.series for reading in self._readings] != [reading.series for reading in before]

    def values(self, now: float) -> list[float]:
        """The frame's values at `now`, in the order of `series`."""
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

    def news(self, now: float) -> bool:
        """Whether the facts differ from those of the last hello; compared once in `FACTS_S`."""
        if now < self._facts_due:
            return False
        self._facts_due = now + FACTS_S
        return self._current_facts() != self._sent_facts

    def hello(self) -> dict[str, Any]:
        """The hello: the present series, in which frames come from now on, and facts about the machine."""
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
