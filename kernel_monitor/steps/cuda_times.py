"""Times of a GPU: events that the stream passes between the phases, read once it has passed them.

Nothing here waits for the device: an event is recorded, and later asked whether it has happened. Only the thread that
runs the loop asks, and not while it captures a CUDA graph, which such a question would spoil.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

CUDA = "cuda"
MOST_MARKS = 256  # of one step; with more it is timed on the host. (A validation inside a training step has thousands.)
_MOST_FREE = 1024  # events kept for reuse, per device
LOST: list[str] = []  # why times of the GPU are not measured any more, for people; one sentence at most


class Cuda:
    """The GPUs of this process, through torch."""

    kind = CUDA  # torch's name for such devices

    def __init__(self) -> None:
        import torch

        # The current device, to which an event belongs once it was recorded.
        self.place: Callable[[], int] = torch.cuda.current_device
        # Whether the current stream is being captured into a graph: nothing may be recorded or asked.
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        # A new event, not recorded.
        self.event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)


class Stamp:
    """A recorded event; goes back to the free ones with its last reader."""

    __slots__ = ("_free", "event")

    def __init__(self, event: Any, free: list[Any]) -> None:
        self.event = event
        self._free = free

    def __del__(self) -> None:
        if len(self._free) < _MOST_FREE:
            self._free.append(self.event)


class Stamps:
    """Makes stamps of one driver (as `Cuda`), from events that are used again."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.made = 0  # events that there are
        self._free: dict[int, list[Any]] = {}
        self._lost = False

    def stamp(self) -> Stamp | None:
        """An event in the current stream, behind what was launched so far; None where that cannot be."""
        if self._lost:
            return None
        try:
            if self.driver.capturing():
                return None
            free = self._free.setdefault(self.driver.place(), [])
            if free:
                event = free.pop()
            else:
                event = self.driver.event()
                self.made += 1
            event.record()
        except RuntimeError as error:
            self.lose(error)
            return None
        return Stamp(event, free)

    def lose(self, error: RuntimeError) -> None:
        """The device refuses: steps are timed on the host from here on, and the reason is kept."""
        self._lost = True
        LOST[:] = [f"Phases are times of the host, not of the GPU: {str(error).splitlines()[0]}"]


class Trail:
    """The stamps of one step: from the request for its batch to the next request."""

    __slots__ = ("_got", "_marks", "_stamps", "broken")

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._marks: list[tuple[int, Stamp]] = []
        self._got = -1
        self.broken = False  # its times are not known

    def now(self) -> Stamp | None:
        """A new stamp of the device that this trail is of."""
        return self._stamps.stamp()

    def add(self, kind: int, stamp: Stamp | None) -> bool:
        """The device is in phase `kind` after this stamp; returns whether the trail goes on."""
        if stamp is None or len(self._marks) >= MOST_MARKS:
            self.broken = True
            self._marks = []
        elif not self.broken:
            self._marks.append((kind, stamp))
        return not self.broken

    def got(self) -> None:
        """The newest stamp is that of the batch: the wait ends there."""
        self._got = len(self._marks) - 1

    def done(self) -> bool:
        """Return whether the device has passed all stamps, or its times cannot be known any more. Never waits."""
        if self.broken:
            return True
        try:
            if self._stamps.driver.capturing():
                return False
            return all(stamp.event.query() for _, stamp in reversed(self._marks))
        except RuntimeError as error:
            self._stamps.lose(error)
            self.broken = True
            return True

    def times(self, kinds: int) -> tuple[float, float, list[float]] | None:
        """s of the wait, of the whole step, and of each kind; what is `OUTSIDE` is in none. None: not known.

        The wait is what the device had to wait for the batch: a batch that came while it still worked on the one
        before was not waited for.
        """
        if self.broken or self._got < 0:
            return None
        wait, whole, spent = 0.0, 0.0, [0.0] * kinds
        try:
            for number, ((kind, begin), (_, end)) in enumerate(zip(self._marks, self._marks[1:], strict=False)):
                seconds = begin.event.elapsed_time(end.event) / 1e3
                if kind == kinds - 1:
                    continue
                whole += seconds
                if number < self._got:
                    wait += seconds
                elif kind >= 0:
                    spent[kind] += seconds
        except RuntimeError as error:
            self._stamps.lose(error)
            return None
        return wait, whole, spent


stamps: Stamps | None = None  # of the device on which phases are timed; None until a model on a GPU is met


def possible() -> bool:
    """Return whether anything in this process can be on a GPU now."""
    return stamps is not None or bool(sys.modules["torch"].cuda.is_initialized())


def holds(tensor: Any) -> bool:
    return bool(tensor.device.type == _kind())


def means(target: Any) -> bool:
    """Return whether a tensor would go to a GPU by `to(target)`.

    A device, its name or number, or a tensor that is there.
    """
    if isinstance(target, str):
        return target.partition(":")[0] == _kind()
    return isinstance(target, int) or getattr(getattr(target, "device", target), "type", None) == _kind()


def _kind() -> str:
    return CUDA if stamps is None else str(stamps.driver.kind)


def use(driver: Any) -> None:
    """Time phases on this driver's device (as `Cuda`) from the next step on; None: on the host."""
    global stamps  # noqa: PLW0603
    stamps = None if driver is None else Stamps(driver)


def use_cuda() -> None:
    """Time phases by CUDA events, unless that is done already."""
    if stamps is None:
        use(Cuda())
