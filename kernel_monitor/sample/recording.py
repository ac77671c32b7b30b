"""The sampler's side of the flight recorder: when there is one, it is given everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_monitor.record.writer import Recorder

    from .clock import SessionClock

NO_GOODBYE = "the kernel ended without goodbye"
TURNED_OFF = "recording was turned off"


class Recording:
    """The recorder of a session, while one is wanted. All methods are for the clock's thread, and none raises.

    Args:
        session: the session's name.
        clock: its clock.
        on_state: told what the recorder does, `{"state", "path", "message", "level"}`; called on any thread.
    """

    def __init__(self, session: str, clock: SessionClock, on_state: Callable[[dict[str, Any]], None]) -> None:
        self._session = session
        self._clock = clock
        self._on_state = on_state
        self._recorder: Recorder | None = None
        self._hello: dict[str, Any] | None = None
        self._goodbye: str | None = None

    @property
    def on(self) -> bool:
        return self._recorder is not None

    def start(self, path: Path) -> None:
        """Record to `path` from now on."""
        from kernel_monitor.record.writer import Recorder

        self.stop()
        try:
            recorder = Recorder(
                path,
                session=self._session,
                # The recorder keeps a clock of its own, which begins now.
                zero=self._clock.zero - self._clock.suspended,
                origin=self._clock.origin,
                on_state=self._on_state,
            )
            recorder.start()
        except Exception as error:  # noqa: BLE001 - what is not recorded must still be seen
            message = f"Recording could not begin: {type(error).__name__}: {error}"
            self._on_state({"state": "stopped", "path": str(path), "message": message, "level": "warning"})
            return
        self._recorder = recorder
        if self._hello is not None:
            recorder.hello(self._hello)

    def stop(self) -> None:
        """Record no more; the session's file stays."""
        if self._recorder is not None:
            self._recorder.close(TURNED_OFF, goodbye=True)
            self._recorder = None

    def hello(self, hello: dict[str, Any]) -> None:
        self._hello = hello
        if self._recorder is not None:
            self._recorder.hello(hello)

    def frame(self, monotonic: float, missed: int, values: bytes) -> None:
        """One frame: `missed` deadlines before it, float32 little-endian `values`."""
        if self._recorder is not None:
            self._recorder.frame(monotonic, missed, values)

    def command(self, command: dict[str, Any]) -> None:
        """What the kernel told of itself: events, values, steps, loaders, epochs, facts, its goodbye."""
        if command["do"] == "goodbye":
            self._goodbye = str(command.get("reason", "stopped"))
        if self._recorder is not None:
            self._recorder.command(command)

    def close(self) -> None:
        """The kernel has gone, or wants no sampler any more."""
        if self._recorder is not None:
            self._recorder.close(self._goodbye or NO_GOODBYE, goodbye=self._goodbye is not None)
            self._recorder = None
