"""Times of the phases of a step, by the host's clock and by CUDA events. Phases do not overlap.

The hooks of watched models and `phase` write the phases of their own thread; the step clocks of that thread read them.
Nothing here waits for the device: an event is recorded, and polled later. Only the thread that runs the loop polls, and
not while it captures a CUDA graph, which a query would invalidate.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..os_process import in_forked_children

# ---- The present phase of a thread, and the time that it spent in each, by the host's clock.

COPY, FORWARD, BACKWARD, OPTIMIZER, OUTSIDE = range(5)
"""Indices in `ThreadPhases.spent`; `OUTSIDE` is time that belongs to no step, such as the profiler's own work."""
KINDS = 5


class Mark(NamedTuple):
    """A snapshot of a thread's phases, taken when a batch came."""

    phases: ThreadPhases
    spent: tuple[float, ...]  # `ThreadPhases.spent` at that moment
    generation: int  # `WatchedModels.generation` at that moment


class ThreadPhases:
    """The phases of a thread."""

    __slots__ = ("_open", "_since", "asked", "on_device", "spent", "trails", "used")

    def __init__(self) -> None:
        self.spent = [0.0] * KINDS  # s, by kind, since the thread's first phase
        self.used = False  # there was a phase
        self.asked = 0  # batches that measured loops have requested on this thread
        self.on_device = False  # the models that run on this thread are on a GPU; the phases are timed there, too
        self.trails: list[Trail] = []  # the trails of the steps under way on this thread
        # The open phases, the innermost last, each with the function that must be running; None for a `with` block.
        self._open: list[tuple[int, CodeType | None]] = []
        self._since = 0.0  # the moment up to which `spent` is complete, while a phase is open

    def enter(self, kind: int, code: CodeType | None = None) -> None:
        """Begin a phase; meanwhile the phase that it interrupts does not count.

        `code` belongs to the function that calls our hooks at the phase's beginning and end. An interrupt skips the
        second hook, so the phase counts only while that function runs.
        """
        if self._open:
            if code is not None:
                self.drop_interrupted()
            self.settle()
        else:
            self._since = monotonic()
        self.used = True
        self._open.append((kind, code))
        if self.trails:
            self.stamp()

    def leave(self, kind: int) -> None:
        """End the innermost phase of that kind, and the phases inside it that were not ended."""
        inside = self._open
        if not inside or (inside[-1][0] != kind and all(other != kind for other, _ in inside)):
            return
        self.settle()
        while inside.pop()[0] != kind:
            pass
        if self.trails:
            self.stamp()

    @property
    def idle(self) -> bool:
        """Whether no phase is open."""
        return not self._open

    @property
    def kind(self) -> int:
        """The kind of the innermost open phase; -1 if none is open."""
        return self._open[-1][0] if self._open else -1

    def settle(self, now: float | None = None) -> None:
        """Add the time of the open phase up to now to `spent`."""
        if self._open:
            now = monotonic() if now is None else now
            if now > self._since:
                self.spent[self._open[-1][0]] += now - self._since
            self._since = now

    def drop_interrupted(self) -> None:
        """Close the phases whose function no longer runs because it was interrupted between its hooks."""
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(frame.f_code))
            frame = frame.f_back
        kept = [(kind, code) for kind, code in self._open if code is None or id(code) in running]
        if len(kept) < len(self._open):
            self.settle()
            self._open = kept

    def stamp(self) -> None:
        """Stamp the change of phase on the device in the trail of every step under way; drop the broken trails."""
        stamp, kind = self.trails[0].now(), self.kind
        self.trails = [trail for trail in self.trails if trail.add(kind, stamp)]

    def mark(self, now: float) -> Mark | None:
        """Return a snapshot of the phases; None if there was never a phase."""
        if not self.used:
            return None
        self.settle(now)
        return Mark(self, tuple(self.spent), watched_models.generation)

    def since(self, mark: Mark, now: float) -> list[float] | None:
        """Return the s per kind since a mark of this thread; None if since then a model was watched or released."""
        if mark.phases is not self or mark.generation != watched_models.generation:
            return None
        if self._open:
            self.drop_interrupted()
            self.settle(now)
        copy, forward, backward, optimizer, outside = self.spent  # one by one: this runs in each step of a loop
        copy_0, forward_0, backward_0, optimizer_0, outside_0 = mark.spent
        return [copy - copy_0, forward - forward_0, backward - backward_0, optimizer - optimizer_0, outside - outside_0]


class WatchedModels:
    """A counter of the models that are watched in this process."""

    def __init__(self) -> None:
        self.count = 0  # 0 in forked children
        self.generation = 0  # grows with every model that is watched or released

    def change(self, by: int) -> None:
        """Add `by` to the count."""
        self.count = max(0, self.count + by)
        self.generation += 1


class _Local(threading.local):
    def __init__(self) -> None:
        self.phases = ThreadPhases()


watched_models = WatchedModels()
on_loop_start: Callable[[], None] | None = None
"""Called on the thread of each measured loop as it begins, to find its model; None: do not look for models."""
_local = _Local()


def thread_phases() -> ThreadPhases:
    """Return the phases of the calling thread."""
    return _local.phases


@in_forked_children
def _in_child() -> None:
    global _local  # noqa: PLW0603 - a loader's worker starts without phases
    _local = _Local()
    watched_models.count = 0
    watched_models.generation += 1


# ---- CUDA events between the phases, read once the stream has passed them.

CUDA = "cuda"
MOST_MARKS = 256  # stamps of a step; a step with more is timed on the host. (A validation in a step has thousands.)
_MOST_FREE = 1024  # events kept for reuse, per device
DEVICE_FAILURE: list[str] = []  # a sentence for the user on why GPU times are no longer measured; empty if they are


class Cuda:
    """A driver of the CUDA events of this process, through torch."""

    kind = CUDA  # torch's name of the device type

    def __init__(self) -> None:
        import torch

        # Returns the current device, to which an event belongs once it is recorded.
        self.place: Callable[[], int] = torch.cuda.current_device
        # Returns whether the current stream is captured into a graph: then no event may be recorded or queried.
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        # Returns a new event, not recorded.
        self.event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)


class Stamp:
    """A recorded event; it returns to the free events when nobody refers to the stamp any more."""

    __slots__ = ("_free", "event")

    def __init__(self, event: Any, free: list[Any]) -> None:
        self.event = event
        self._free = free

    def __del__(self, most: int = _MOST_FREE) -> None:  # a default, as modules are empty at the interpreter's end
        if len(self._free) < most:
            self._free.append(self.event)


class Stamps:
    """A maker of stamps by one driver (such as `Cuda`); it reuses events."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.made = 0  # events made so far
        self._free: dict[int, list[Any]] = {}
        self._lost = False

    def stamp(self) -> Stamp | None:
        """Record an event in the current stream, behind all work launched so far; return None if that is impossible."""
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
            self.give_up(error)
            return None
        return Stamp(event, free)

    def give_up(self, error: RuntimeError) -> None:
        """Time steps on the host from here on, as the device has failed; keep the reason in `DEVICE_FAILURE`."""
        self._lost = True
        DEVICE_FAILURE[:] = [f"Phases are times of the host, not of the GPU: {str(error).splitlines()[0]}"]


class Trail:
    """The stamps of a step, from the request for its batch to the next request."""

    __slots__ = ("_got", "_marks", "_stamps", "broken")

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._marks: list[tuple[int, Stamp]] = []
        self._got = -1  # index of the stamp at the end of the wait
        self.broken = False  # its times cannot be known

    def now(self) -> Stamp | None:
        """Record a new stamp on this trail's device; return None where that is impossible."""
        return self._stamps.stamp()

    def add(self, kind: int, stamp: Stamp | None) -> bool:
        """Add the stamp after which the device is in phase `kind`; return whether the trail is still good."""
        if stamp is None or len(self._marks) >= MOST_MARKS:
            self.broken = True
            self._marks = []
        elif not self.broken:
            self._marks.append((kind, stamp))
        return not self.broken

    def got(self) -> None:
        """Note that the wait for the batch ends at the newest stamp."""
        self._got = len(self._marks) - 1

    def done(self) -> bool:
        """Return whether the device has passed all stamps, or the trail is broken. Never waits."""
        if self.broken:
            return True
        try:
            if self._stamps.driver.capturing():
                return False
            return all(stamp.event.query() for _, stamp in reversed(self._marks))
        except RuntimeError as error:
            self._stamps.give_up(error)
            self.broken = True
            return True

    def times(self, kinds: int) -> tuple[float, float, list[float]] | None:
        """Return the s of the wait, of the whole step, and of each kind, without `OUTSIDE`; None if not known.

        The wait is the time that the device waited for the batch: 0 if the batch came while the device still worked on
        the batch before.
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
            self._stamps.give_up(error)
            return None
        return wait, whole, spent


stamps: Stamps | None = None  # makes the stamps on the device; None until a watched model on a GPU runs


def gpu_in_use() -> bool:
    """Return whether a tensor in this process can be on a GPU now."""
    return stamps is not None or bool(sys.modules["torch"].cuda.is_initialized())


def is_on_gpu(tensor: Any) -> bool:
    """Return whether a tensor is on a GPU."""
    return bool(tensor.device.type == _kind())


def is_gpu_target(target: Any) -> bool:
    """Return whether `tensor.to(target)` copies to a GPU; `target` is a device, its name or number, or a tensor."""
    if isinstance(target, str):
        return target.partition(":")[0] == _kind()
    return isinstance(target, int) or getattr(getattr(target, "device", target), "type", None) == _kind()


def _kind() -> str:
    return CUDA if stamps is None else str(stamps.driver.kind)


def use_driver(driver: Any) -> None:
    """Time phases on this driver's device (such as `Cuda`) from the next step on; None: on the host."""
    global stamps  # noqa: PLW0603
    stamps = None if driver is None else Stamps(driver)


def use_cuda() -> None:
    """Time phases by CUDA events from the next step on."""
    if stamps is None:
        use_driver(Cuda())
