"""What a frame holds: the series in their order, and the newest value of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .probe import NAN, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .background import Background
    from .gpu.gpus import Gpus

FACTS_S = 1.0
"""How often the facts of the hello are compared with those that were sent."""


class _Part:
    """A probe that is read on the clock's thread."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.every = 1
        self.series = probe.series
        self.values: Sequence[float] = [NAN] * len(self.series)
        self.stamp = NAN
        self.window = NAN


class Frames:
    """Reads what is due, and puts frames together. All methods are for the clock's thread.

    The order is: the probes that are read with the frames, those of the background, the GPUs, and what the frame says
    about itself: `sample/interval`, and for each group that has series `sample/<group>/age` and
    `sample/<group>/window`. Series may come and go.

    Args:
        fast: the probes that are read on this thread, each at its period, rounded to whole frames.
        background: the probes that are read beside it.
        gpus: the GPUs.
        facts: what the hello says and what does not change; `cpus` and `host` are completed here.
        cores: gives the cores that have series.
        complain: told about each failure, (name, error).
        interval: seconds between frames.
    """

    def __init__(
        self,
        fast: Sequence[Probe],
        background: Background,
        gpus: Gpus,
        facts: Mapping[str, Any],
        cores: Callable[[], Sequence[int]],
        complain: Callable[[str, Exception], None],
        interval: float,
    ) -> None:
        self._fast = [_Part(probe) for probe in fast]
        self._background = background
        self._gpus = gpus
        self._facts = facts
        self._cores = cores
        self._complain = complain
        self._interval = interval
        self._count = 0
        self._readings = background.readings()
        self._gpu_groups: list[str] = []
        self._said: dict[str, Any] = {}
        self._facts_due = 0.0
        self.series: list[tuple[str, str]] = []
        self.set_interval(interval)
        self.lay_out()

    def set_interval(self, interval: float) -> None:
        """Frames come every `interval` seconds from now on."""
        self._interval = interval
        for part in self._fast:
            part.every = max(1, round(part.probe.period / interval))

    def prime(self, now: float) -> None:
        """Read everything once, so that rates count from here."""
        for part in self._fast:
            self._read(part, now)

    def read(self, now: float) -> bool:
        """Read what is due at `now`; whether the series are others than before."""
        count, self._count = self._count, self._count + 1
        other = False
        for part in self._fast:
            if count % part.every == 0:
                self._read(part, now)
                if part.probe.series is not part.series:
                    other = True
        readings = self._background.readings()
        for new, old in zip(readings, self._readings, strict=True):
            if new is not old and new.series != old.series:
                other = True
        self._readings = readings
        return other

    def values(self, now: float) -> list[float]:
        """The frame's values at `now`, in the order of `series`; the same list each time."""
        values: list[float] = []
        ages: list[float] = []
        for part in self._fast:
            if part.series:
                values += part.values
                ages += (now - part.stamp, part.window)
        for reading in self._readings:
            if reading.series:
                values += reading.values
                ages += (now - reading.stamp, reading.window)
        values += self._gpus.read(now)
        values.append(self._interval)
        values += ages
        asked = {group: (age, window) for group, age, window in self._gpus.groups(now)}
        for group in self._gpu_groups:
            values += asked.get(group, (NAN, NAN))
        return values

    def lay_out(self) -> None:
        """Take over the series that there are now."""
        series: list[tuple[str, str]] = []
        groups: list[str] = []
        for part in self._fast:
            part.series = part.probe.series
            if part.series:
                series += part.series
                groups.append(part.probe.group)
        for group, reading in zip(self._background.groups, self._readings, strict=True):
            if reading.series:
                series += reading.series
                groups.append(group)
        series += self._gpus.series
        self._gpu_groups = [group for group, _, _ in self._gpus.groups()]
        groups += self._gpu_groups
        series.append(("sample/interval", "s"))
        series += [(f"sample/{group}/{what}", "s") for group in groups for what in ("age", "window")]
        self.series = series

    def news(self, now: float) -> bool:
        """Whether the facts differ from those that the last hello said; looked at once in `FACTS_S`."""
        if now < self._facts_due:
            return False
        self._facts_due = now + FACTS_S
        return self._about() != self._said

    def hello(self) -> dict[str, Any]:
        """What is measured, and of what machine."""
        self._said = self._about()
        return {
            "interval": self._interval,
            "series": [{"name": name, "unit": unit} for name, unit in self.series],
            **self._said,
            **self._gpus.hello(),
        }

    def _about(self) -> dict[str, Any]:
        reasons = self._background.reasons()
        for part in self._fast:
            reasons |= part.probe.reasons
        host = {**self._facts["host"], **self._background.facts(), "reasons": reasons}
        return {**self._facts, "cpus": list(self._cores()), "host": host}

    def _read(self, part: _Part, now: float) -> None:
        try:
            part.values = part.probe.read(now)
        except Exception as error:  # noqa: BLE001 - one thing that cannot be measured must not end the others
            part.values = [NAN] * len(part.probe.series)
            self._complain(part.probe.group, error)
        part.window = now - part.stamp
        part.stamp = now
