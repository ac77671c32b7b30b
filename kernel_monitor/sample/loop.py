"""The sampler's clock: absolute deadlines, one frame each, and the end when the kernel has gone."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from . import process, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .clock import SessionClock
    from .commands import Commands
    from .frames import Frames
    from .gpu.gpus import Gpus
    from .pipes import Input, Output
    from .recording import Recording

CHECK_S = 1.0
"""How often the sampler looks whether its parent still runs."""
QUIET_S = 0.002
"""Commands that arrive this short before a deadline are read after it."""


class Parent(NamedTuple):
    """The process that the sampler lives for: its number and when it began (`process.start_of`)."""

    pid: int
    start: float


class Notices:
    """What is to be told to people. May be called on any thread; the clock's thread sends it."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque(maxlen=1000)
        self._complaints: set[tuple[str, str]] = set()

    def tell(self, level: str, message: str, **more: object) -> None:
        self.waiting.append({"level": level, "message": message, **more})

    def warn(self, message: str) -> None:
        self.tell("warning", message)

    def recorder(self, state: dict[str, Any]) -> None:
        """Tell what the recorder does: `{"state", "path", "message"}`, and its level where it is more than news."""
        self.waiting.append({"level": "info", **state, "kind": "recorder"})

    def complain(self, name: str, error: Exception) -> None:
        """Tell once about each kind of failure of a probe."""
        kind = type(error).__name__
        if (name, kind) not in self._complaints:
            self._complaints.add((name, kind))
            self.tell("warning", f"{name} cannot be measured: {kind}: {error}")


class Loop:
    """Samples until its end.

    Deadline k is at session time `(k + 1/2) * interval`: in the middle of a heatmap's column, so that a sample a little
    early or late stays in its own, after a restart too. A frame that cannot be taken within half an interval of its
    deadline is not taken: the next one says how many were missed, and no two come closer than half an interval. After
    a change of the interval, or a sleep of the machine, the next frame is taken at the first deadline of the new grid.

    Args:
        interval: seconds between deadlines.
        clock: the session's clock.
        source: the pipe from the kernel; its end ends the loop.
        sink: the pipe to the kernel.
        frames: what is measured.
        gpus: the GPUs, whose changes are told.
        tree: gives the numbers of the kernel's processes, whose share of the GPUs is told.
        recording: is given every hello and frame.
        notices: what others want to be told.
        parent: whose end ends the loop; None for nobody's.
    """

    def __init__(
        self,
        interval: float,
        clock: SessionClock,
        source: Input,
        sink: Output,
        frames: Frames,
        gpus: Gpus,
        tree: Callable[[], Iterable[int]],
        recording: Recording,
        notices: Notices,
        parent: Parent | None,
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._slept = clock.suspended
        self._source = source
        self._sink = sink
        self._frames = frames
        self._gpus = gpus
        self._tree = tree
        self._recording = recording
        self._notices = notices
        self._parent = parent
        self._replanned: list[Callable[[float, float], None]] = []
        self._earliest = 0.0  # monotonic time before which no frame may be taken
        self._last = -math.inf
        self._other_grid = False
        self._encoder = wire.FrameEncoder(0)
        self._hello: bytes | None = None  # until it is sent
        self._check_due = 0.0
        self._missed = 0
        self._unsent = 0  # deadlines that the kernel knows nothing of: the pipe was full

    @property
    def base(self) -> float:
        """Monotonic time from which the deadlines are counted: session time 0, had the machine never slept."""
        return self._clock.zero - self._slept

    def on_replan(self, callback: Callable[[float, float], None]) -> None:
        """Have `callback(interval, base)` called after each change of the grid."""
        self._replanned.append(callback)

    def set_interval(self, seconds: float) -> None:
        """Sample every `seconds` from now on; a hello says so before the next frame."""
        if seconds == self._interval:
            return
        self._earliest = self._last + 0.5 * min(self._interval, seconds)
        self._interval = seconds
        self._other_grid = True

    def run(self, commands: Commands) -> str:
        """Sample until the kernel has gone; returns how that was seen."""
        try:
            return self._run(commands)
        except BrokenPipeError:
            # The kernel closed its end of the frames first: its last words may wait in the other pipe.
            while self._source.wait(0.0) and (lines := self._source.lines()):
                commands.run(lines)
            return "nobody reads the frames"

    def _run(self, commands: Commands) -> str:
        self._greet()
        now = time.monotonic()
        self._frames.prime(now)
        # Half an interval at least before the first deadline: a rate over less is mostly noise.
        tick = self._tick_from(now + 0.5 * self._interval)
        while True:
            ended = self._sleep_until(self._deadline(tick), commands)
            if ended:
                return ended
            if self._other_grid:
                tick = self._replan()
                continue
            late = round((time.monotonic() - self._deadline(tick)) / self._interval)
            if late > 0:
                self._missed += late
                tick += late
                ended = self._sleep_until(self._deadline(tick), commands)
                if ended:
                    return ended
            if not self._other_grid:
                self._sample()
                tick += 1

    def _deadline(self, tick: int) -> float:
        return self.base + (tick + 0.5) * self._interval

    def _tick_from(self, moment: float) -> int:
        """The first deadline at `moment` or later."""
        return math.ceil((moment - self.base) / self._interval - 0.5 - 1e-9)

    def _replan(self) -> int:
        """Go over to the new grid; its first deadline."""
        self._other_grid = False
        self._frames.set_interval(self._interval)
        self._gpus.set_interval(self._interval)
        for callback in self._replanned:
            callback(self._interval, self.base)
        self._greet()
        return self._tick_from(max(time.monotonic(), self._earliest))

    def _sleep_until(self, deadline: float, commands: Commands) -> str:
        """Sleep, look after the parent and the commands meanwhile; why it is time to end, or nothing.

        Returns early if there is another grid.
        """
        while True:
            now = time.monotonic()
            if now >= self._check_due:
                self._check_due = now + CHECK_S
                self._gpus.set_processes(self._tree())
                if self._parent is not None and not process.is_alive(self._parent.pid, self._parent.start):
                    return "the parent has ended"
            self._look_at_the_clock()
            if deadline - now > QUIET_S:
                commands.run(self._source.lines())
                self._say()
                now = time.monotonic()
            left = deadline - now
            if left <= 0 or self._other_grid:
                return ""
            if not self._source.wait(min(left, CHECK_S)):
                commands.run(self._source.lines())
                return "the pipe has ended"

    def _look_at_the_clock(self) -> None:
        slept = self._clock.suspended
        if slept != self._slept:
            self._notices.tell("info", f"the machine slept for {slept - self._slept:.1f} s")
            self._slept = slept
            self._earliest = self._last + 0.5 * self._interval
            self._other_grid = True

    def _sample(self) -> None:
        stamp = self._last = time.monotonic()
        other = self._frames.read(stamp)
        changes = self._gpus.refresh(stamp)
        for change in changes:
            self._notices.warn(change)
        self._notices.waiting.extend(self._gpus.notices())
        if other or changes or self._frames.news(stamp):
            self._greet()
        message = self._encoder.encode(stamp, self._missed + self._unsent, self._frames.values(stamp))
        self._recording.frame(stamp, self._missed, message[wire.VALUES_AT :])
        sent = self._greeted() and self._sink.send(message)
        self._unsent = 0 if sent else self._unsent + self._missed + 1
        self._missed = 0
        self._say()

    def _say(self) -> None:
        while self._notices.waiting:
            self._sink.send(wire.encode_json(wire.NOTICE, self._notices.waiting.popleft()), keep=True)

    def _greet(self) -> None:
        """Lay out the frames by the series that there are, and say so."""
        self._frames.lay_out()
        self._encoder = wire.FrameEncoder(len(self._frames.series))
        hello = self._frames.hello()
        self._recording.hello(hello)
        self._hello = wire.encode_json(wire.HELLO, hello)
        self._greeted()

    def _greeted(self) -> bool:
        """Send the hello, if the last one waits for room in the pipe; whether the kernel knows the layout."""
        if self._hello is not None and self._sink.send(self._hello):
            self._hello = None
        return self._hello is None
