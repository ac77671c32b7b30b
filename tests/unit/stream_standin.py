"""A GPU's stream and its events, on a clock of its own: what is launched runs later, one after the other.

`Device` is what `kernel_monitor.steps.phase_times.Cuda` is, for tensors on torch's `meta` device.
"""

from __future__ import annotations


class Waited(AssertionError):
    """Something waited for the device."""


class Device:
    """One stream. Times in s, by `now`, which only the test moves.

    Attributes:
        now: the host's clock.
        busy: until when the stream has work.
        refuses: raised by everything that is asked from then on.
        graph: a graph is being captured.
        asked: events that were asked whether they had happened.
        events: that were made.
    """

    kind = "meta"

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = 0.0
        self.refuses: RuntimeError | None = None
        self.graph = False
        self.asked = 0
        self.events: list[Event] = []

    def launch(self, seconds: float, host: float = 0.0) -> None:
        """Work for the stream, which the host needs `host` s to launch."""
        self.now += host
        self.busy = max(self.busy, self.now) + seconds

    def place(self) -> int:
        return 0

    def capturing(self) -> bool:
        return self.graph

    def event(self) -> Event:
        self.events.append(Event(self))
        return self.events[-1]

    def synchronize(self) -> None:
        raise Waited


class Event:
    """Recorded again while it is pending it is another event, as CUDA's are."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._happens: float | None = None

    def record(self) -> None:
        self._answer()
        self._happens = max(self._device.busy, self._device.now)

    def query(self) -> bool:
        self._answer()
        self._device.asked += 1
        assert self._happens is not None, "an event was asked that was never recorded"
        return self._happens <= self._device.now

    def elapsed_time(self, end_event: Event) -> float:
        """ms."""
        self._answer()
        if not self.query() or not end_event.query():
            raise RuntimeError("device not ready")
        assert self._happens is not None
        assert end_event._happens is not None
        return 1e3 * (end_event._happens - self._happens)

    def synchronize(self) -> None:
        raise Waited

    wait = synchronize

    def _answer(self) -> None:
        if self._device.refuses is not None:
            raise self._device.refuses
        if self._device.graph:
            raise RuntimeError("operation not permitted when stream is capturing")
