"""State of the recording of this session; a failure is a state with a message, never an exception in a cell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import MonitorError
from ..record import folders, sessions
from ..text import shown

if TYPE_CHECKING:
    from ..protocol.states import RecorderState, RecordingState

LOG = logging.getLogger(__name__)

OFF = "Recording is off."
NO_ANSWER = "the recorder has not answered yet"


class Recording:
    """The file of one session and the recorder's last report about it.

    States: `recording`; `moved` (recording, but elsewhere than asked for: `message` says why); `stopped` (it failed:
    `message` says why and what to do); `off`.
    """

    def __init__(self) -> None:
        self._state: RecordingState = {"state": "off", "path": None, "message": OFF}
        self._path: Path | None = None
        self._folder: str | None = None
        self._moved: str | None = None
        self._answered = threading.Event()  # the recorder has answered the newest `begin`

    def to_json(self) -> RecordingState:
        """`{"state", "path", "message"}`; a new object after each change."""
        return self._state

    @property
    def on(self) -> bool:
        return self._state["state"] in ("recording", "moved")

    def begin(self, folder: str | None, session: str, origin: float) -> Path | None:
        """Begin or resume recording; returns the file, the same for a whole session unless the folder changes, or None.

        Args:
            folder: for recordings; None for the default one.
            session: the session's id.
            origin: its beginning, in Unix s.
        """
        self._answered.clear()
        try:
            if self._path is None or folder != self._folder:
                place = folders.directory(None if folder is None else Path(folder))
                self._path, self._moved = folders.new_file(place, session, origin), place.message
                self._folder = folder
        except (OSError, MonitorError) as error:
            self._path = None
            self._set("stopped", None, f"This session is not recorded: {error}")
            return None
        self._set("recording" if self._moved is None else "moved", self._path, self._moved or "")
        return self._path

    def end(self, message: str = OFF) -> None:
        """Recording ends on request."""
        self._set("off", self._path, message)

    def settle(self, seconds: float) -> None:
        """Wait at most `seconds` for the recorder's answer, so that the state is the result and not the request."""
        if self.on and not self._answered.wait(seconds):
            self._set("recording" if self._moved is None else "moved", self._path, NO_ANSWER)

    def handle_notice(self, notice: Mapping[str, Any]) -> None:
        """Take over the recorder's report, unless it answers an earlier request."""
        state, path = cast("RecorderState", notice.get("state")), notice.get("path")
        if state == "off" or self._state["state"] == "off":
            return
        if path is not None and state != "moved" and self._path is not None and Path(path) != self._path:
            return
        self._answered.set()
        if state == "recording" and self._moved is not None:
            self._set("moved", self._path, self._moved)
        else:
            self._set(state, self._path if path is None else Path(path), str(notice.get("message") or ""))

    def _set(self, state: RecorderState, path: Path | None, message: str) -> None:
        new: RecordingState = {"state": state, "path": None if path is None else str(path), "message": message}
        if new != self._state:
            self._state = new


def left_behind() -> dict[str, str] | None:
    """`{"path", "message"}` of the newest session that ended without a goodbye, reported once; or None."""
    try:
        found = sessions.left_without_goodbye()
        if found is None:
            return None
        sessions.mark_told(found)
    except Exception:  # this session must start whatever the folder contains
        LOG.exception("the recordings of earlier sessions cannot be listed")
        return None
    began, lasted = sessions.moment_text(found.started), sessions.span_text(found.seconds)
    message = (
        f"The last session (started {began}, {lasted}) ended without goodbye: "
        f"its recording is {found.path}. See it with %monitor open {found.path}."
    )
    return {"path": str(found.path), "message": message}


def words(recording: RecordingState) -> str:
    """A recording's state as one line."""
    if recording["state"] in ("recording", "moved"):
        line = f"recording to {shown(str(recording['path']))}"
        return f"{line} ({recording['message']})" if recording["message"] else line
    return f"not recording: {recording['message']}"
