"""The sampler's loop: it takes a frame at each deadline, runs the kernel's commands, and ends with the kernel."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..os_process import is_alive
from . import pipes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernel_monitor.record.writer import Recorder

    from .clock import SessionClock
    from .frame_builder import FrameBuilder
    from .gpu.gpus import Gpus
    from .host.processes import ProcessTree
    from .pipes import Input, Output


RECORDED = (
    "event",
    "values",
    "node-values",
    "rank-values",
    "steps",
    "loaders",
    "nodes",
    "ranks",
    "epochs",
    "cell_running",
    "facts",
    "goodbye",
)
_CHECK_S = 1.0  # seconds between two checks that the parent still runs
_QUIET_S = 0.002  # commands that arrive less than this before a deadline are read after it


class Notices:
    """Notices for the user. Any thread may add them; the loop's thread sends them."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque(maxlen=1000)
        self._reported: set[tuple[str, str]] = set()

    def add(self, level: str, message: str) -> None:
        self.waiting.append({"level": level, "message": message})

    def warn(self, message: str) -> None:
        self.add("warning", message)

    def recorder(self, state: dict[str, Any]) -> None:
        """Add the recorder's state: `{"state", "path", "message"}`, with `level` if that is not `info`."""
        self.waiting.append({"level": "info", **state, "kind": "recorder"})

    def report_failure(self, name: str, error: Exception) -> None:
        """Warn of a failed read, once for each probe and type of exception."""
        kind = type(error).__name__
        if (name, kind) not in self._reported:
            self._reported.add((name, kind))
            self.warn(f"{name} cannot be measured: {kind}: {error}")


@dataclass(eq=False)
class Loop:
    """The loop of the sampler process.

    Deadline k is at session time `(k + 1/2) * interval`: in the middle of a heatmap's column, so that a sample that is
    a little early or late stays in its column, also after a restart. A frame that cannot be taken within half an
    interval of its deadline is skipped, and the next frame carries the number of missed deadlines. Two frames are never
    closer than half an interval. After a change of the interval, or a suspension of the machine, the next frame is
    taken at the first deadline of the new grid.
    """

    interval: float  # seconds between deadlines
    clock: SessionClock  # the session's clock
    source: Input  # the pipe from the kernel; its end ends the loop
    sink: Output  # the pipe to the kernel
    frames: FrameBuilder  # the contents of the frames
    gpus: Gpus  # the GPUs, whose changes are reported
    tree: ProcessTree  # the kernel's processes, whose share of the GPUs is measured
    recording: RecorderLink  # gets every hello and frame
    notices: Notices  # sent between the frames
    on_replan: Callable[[float, float], None]  # called with the interval and `base` after each change of the grid
    parent: tuple[int, float] | None  # the process whose end ends the loop, and its start (`os_process.start_of`)

    def __post_init__(self) -> None:
        self._slept = self.clock.suspended
        self._earliest = 0.0  # monotonic time before which no frame may be taken
        self._last = -math.inf
        self._grid_changed = False
        self._encoder = pipes.FrameEncoder(0)
        self._hello: bytes | None = None  # a hello that is not sent yet
        self._check_due = 0.0
        self._missed = 0
        self._unsent = 0  # deadlines whose frames were not sent because the pipe was full

    @property
    def base(self) -> float:
        """Monotonic time from which the deadlines are counted: session time 0 minus the time of suspensions."""
        return self.clock.zero - self._slept

    def _set_interval(self, seconds: float) -> None:
        """Change the interval; the hello is sent again before the next frame."""
        if seconds == self.interval:
            return
        self._earliest = self._last + 0.5 * min(self.interval, seconds)
        self.interval = seconds
        self._grid_changed = True

    def run(self) -> str:
        """Sample until the kernel has ended; return the reason for the end."""
        try:
            return self._run()
        except BrokenPipeError:
            # The kernel closed the frames' pipe first: its last messages may still be in the other pipe.
            while self.source.wait(0.0) and (lines := self.source.lines()):
                self._run_commands(lines)
            return "nobody reads the frames"

    def _run_commands(self, lines: Iterable[bytes]) -> None:
        """Run the kernel's commands; warn of malformed lines."""
        for line in lines:
            try:
                self._run_command(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                self.notices.warn(f"the sampler does not understand {line[:80]!r}: {type(error).__name__}: {error}")

    def _run_command(self, command: dict[str, Any]) -> None:
        """Run a command. Raises ValueError, TypeError or KeyError for a malformed message."""
        do = command["do"]
        if do in RECORDED:
            self.recording.command(command)
        elif do == "interval":
            self._set_interval(pipes.check_interval(float(command["seconds"])))
        elif do == "roles":
            self.tree.set_workers([int(pid) for pid in command["workers"]])
        elif do != "record":
            self.notices.warn(f"the sampler knows no such command: {str(do)[:80]!r}")
        elif command["path"] is None:
            self.recording.stop()
        else:
            self.recording.start(Path(command["path"]))

    def _run(self) -> str:
        self._send_hello()
        now = time.monotonic()
        self.frames.prime(now)
        # The first deadline is at least half an interval away: rates over less are mostly noise.
        tick = self._tick_from(now + 0.5 * self.interval)
        while True:
            if ended := self._sleep_until(self._deadline(tick)):
                return ended
            if self._grid_changed:
                tick = self._replan()
                continue
            late = round((time.monotonic() - self._deadline(tick)) / self.interval)
            if late > 0:
                self._missed += late
                tick += late
                if ended := self._sleep_until(self._deadline(tick)):
                    return ended
            if not self._grid_changed:
                self._sample()
                tick += 1

    def _deadline(self, tick: int) -> float:
        return self.base + (tick + 0.5) * self.interval

    def _tick_from(self, moment: float) -> int:
        """Return the first deadline at `moment` or later."""
        return math.ceil((moment - self.base) / self.interval - 0.5 - 1e-9)

    def _replan(self) -> int:
        """Change to the new grid; return its first deadline."""
        self._grid_changed = False
        self.frames.set_interval(self.interval)
        self.gpus.set_interval(self.interval)
        self.on_replan(self.interval, self.base)
        self._send_hello()
        return self._tick_from(max(time.monotonic(), self._earliest))

    def _sleep_until(self, deadline: float) -> str:
        """Sleep and run commands until the deadline or a change of the grid.

        Returns the reason if the loop must end, else an empty string.
        """
        while True:
            now = time.monotonic()
            if now >= self._check_due:
                self._check_due = now + _CHECK_S
                self.gpus.set_processes(self.tree.pids)
                if self.parent is not None and not is_alive(*self.parent):
                    return "the parent has ended"
            self._check_clock()
            if deadline - now > _QUIET_S:
                self._run_commands(self.source.lines())
                self._send_notices()
                now = time.monotonic()
            left = deadline - now
            if left <= 0 or self._grid_changed:
                return ""
            if not self.source.wait(min(left, _CHECK_S)):
                self._run_commands(self.source.lines())
                return "the pipe has ended"

    def _check_clock(self) -> None:
        slept = self.clock.suspended
        if slept != self._slept:
            self.notices.add("info", f"the machine slept for {slept - self._slept:.1f} s")
            self._slept = slept
            self._earliest = self._last + 0.5 * self.interval
            self._grid_changed = True

    def _sample(self) -> None:
        stamp = self._last = time.monotonic()
        series_changed = self.frames.read(stamp)
        changes = self.gpus.refresh(stamp)
        for change in changes:
            self.notices.warn(change)
        self.notices.waiting.extend(self.gpus.notices())
        if series_changed or changes or self.frames.facts_changed(stamp):
            self._send_hello()
        message = self._encoder.encode(stamp, self._missed + self._unsent, self.frames.values(stamp))
        self.recording.frame(stamp, self._missed, message[pipes.VALUES_AT :])
        sent = self._hello_sent() and self.sink.send(message)
        self._unsent = 0 if sent else self._unsent + self._missed + 1
        self._missed = 0
        self._send_notices()

    def _send_notices(self) -> None:
        while self.notices.waiting:
            self.sink.send(pipes.encode_json(pipes.NOTICE, self.notices.waiting.popleft()), keep=True)

    def _send_hello(self) -> None:
        hello = self.frames.hello()
        self._encoder = pipes.FrameEncoder(len(hello["series"]))
        self.recording.hello(hello)
        self._hello = pipes.encode_json(pipes.HELLO, hello)
        self._hello_sent()

    def _hello_sent(self) -> bool:
        """Send the hello if it waits for room in the pipe; return whether the kernel has the newest one."""
        if self._hello is not None and self.sink.send(self._hello):
            self._hello = None
        return self._hello is None


# ---- The sampler's connection to the recorder.


@dataclass(eq=False)
class RecorderLink:
    """A link that passes hellos, frames and the kernel's messages to the recorder while recording is on.

    All methods are for the loop's thread, and none raises.
    """

    session: str  # the session's name
    clock: SessionClock  # the session's clock
    # Called on any thread with the recorder's state, `{"state", "path", "message", "level"}`.
    on_state: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        self._recorder: Recorder | None = None
        self._hello: dict[str, Any] | None = None
        self._goodbye: str | None = None

    def start(self, path: Path) -> None:
        """Start to record to `path`, after the end of a recording that runs."""
        from kernel_monitor.record.writer import Recorder  # imported late: most samplers never record

        self.stop()
        try:
            recorder = Recorder(path, session=self.session, origin=self.clock.origin, on_state=self.on_state)
            recorder.start()
        except Exception as error:  # noqa: BLE001 - a failed recording must be shown, and the sampling go on
            message = f"Recording could not begin: {type(error).__name__}: {error}"
            self.on_state({"state": "stopped", "path": str(path), "message": message, "level": "warning"})
            return
        self._recorder = recorder
        if self._hello is not None:
            self.hello(self._hello)

    def stop(self) -> None:
        """Stop to record; the session's file stays."""
        self._end("recording was turned off", goodbye=True)

    def hello(self, hello: dict[str, Any]) -> None:
        """Record a hello; it is kept for recordings that start later."""
        self._hello = hello
        if self._recorder is not None:
            self._recorder.hello(self.clock.time(time.monotonic()), hello)

    def frame(self, monotonic: float, missed: int, values: bytes) -> None:
        """Record a frame: the number of deadlines missed before it, and `values`, float32 little-endian."""
        if self._recorder is not None:
            self._recorder.frame(self.clock.time(monotonic), missed, values)

    def command(self, command: dict[str, Any]) -> None:
        """Pass on a message of the kernel for the recording (one of `RECORDED`)."""
        if command["do"] == "goodbye":
            self._goodbye = str(command.get("reason", "stopped"))
        if self._recorder is not None:
            self._recorder.command(command)

    def close(self) -> None:
        """End the recording because the kernel has ended, or stopped the monitor."""
        self._end(self._goodbye or "the kernel ended without goodbye", goodbye=self._goodbye is not None)

    def _end(self, reason: str, *, goodbye: bool) -> None:
        if self._recorder is not None:
            self._recorder.close(reason, goodbye=goodbye)
            self._recorder = None
