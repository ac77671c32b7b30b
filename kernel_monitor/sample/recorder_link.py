"""The sampler's connection to the recorder: passes hellos, frames and the kernel's messages to it while one runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_monitor.record.writer import Recorder

    from .clock import SessionClock


@dataclass(eq=False)
class RecorderLink:
    """The recorder of a session, while recording is on. All methods are for the clock's thread, and none raises."""

    session: str  # the session's name
    clock: SessionClock  # its clock
    # Called on any thread with the recorder's state, `{"state", "path", "message", "level"}`.
    on_state: Callable[[dict[str, Any]], None]

    def __post_init__(self) -> None:
        self._recorder: Recorder | None = None
        self._hello: dict[str, Any] | None = None
        self._goodbye: str | None = None

    def start(self, path: Path) -> None:
        """Record to `path` from now on."""
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
        """Record no more; the session's file stays."""
        self._end("recording was turned off", goodbye=True)

    def hello(self, hello: dict[str, Any]) -> None:
        self._hello = hello
        if self._recorder is not None:
            self._recorder.hello(self.clock.time(time.monotonic()), hello)

    def frame(self, monotonic: float, missed: int, values: bytes) -> None:
        """One frame: `missed` deadlines before it, float32 little-endian `values`."""
        if self._recorder is not None:
            self._recorder.frame(self.clock.time(monotonic), missed, values)

    def command(self, command: dict[str, Any]) -> None:
        """A message of the kernel for the recording: events, values, steps, loaders, epochs, facts, goodbye."""
        if command["do"] == "goodbye":
            self._goodbye = str(command.get("reason", "stopped"))
        if self._recorder is not None:
            self._recorder.command(command)

    def close(self) -> None:
        """The kernel has ended, or stopped the monitor."""
        self._end(self._goodbye or "the kernel ended without goodbye", goodbye=self._goodbye is not None)

    def _end(self, reason: str, *, goodbye: bool) -> None:
        if self._recorder is not None:
            self._recorder.close(reason, goodbye=goodbye)
            self._recorder = None
