"""Whether and where this session is recorded: a state for people, never an exception in their cell."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MonitorError
from ..record import places, sessions
from ..record.when import moment, span
from ..text import shown

LOG = logging.getLogger(__name__)

OFF = "Recording is off."
NO_WORD = "the recorder has not said yet whether it can"


class Recording:
    """The file of one session, and what the recorder last said of it.

    States: `recording`; `moved` (recording, but elsewhere than asked for: `message` says why); `stopped` (it failed:
    `message` says why and what to do); `off`.
    """

    def __init__(self) -> None:
        self._state: dict[str, Any] = {"state": "off", "path": None, "message": OFF}
        self._path: Path | None = None
        self._folder: str | None = None
        self._moved: str | None = None
        self._word = threading.Event()  # the recorder has said what became of the newest `begin`

    def to_json(self) -> dict[str, Any]:
        """`{"state", "path", "message"}`; always another object after a change."""
        return self._state

    @property
    def on(self) -> bool:
        return self._state["state"] in ("recording", "moved")

    def begin(self, folder: str | None, session: str, origin: float) -> Path | None:
        """The file to record to, the same one for the whole session unless the folder changes; None if there is none.

        Args:
            folder: where a person wants recordings; None for the usual place.
            session: the session's id.
            origin: its beginning, in Unix seconds.
        """
        self._word.clear()
        try:
            if self._path is None or folder != self._folder:
                place = places.directory(None if folder is None else Path(folder))
                self._path, self._moved = places.new_file(place, session, origin), place.message
                self._folder = folder
        except (OSError, MonitorError) as error:
            self._path = None
            self._set("stopped", None, f"This session is not recorded: {error}")
            return None
        self._set("recording" if self._moved is None else "moved", self._path, self._moved or "")
        return self._path

    def end(self, message: str = OFF) -> None:
        """Nothing is recorded from now on, as somebody wanted."""
        self._set("off", self._path, message)

    def settle(self, seconds: float) -> None:
        """Wait until the recorder has said whether it records, no longer than `seconds`; then the state says that."""
        if self.on and not self._word.wait(seconds):
            self._set("recording" if self._moved is None else "moved", self._path, NO_WORD)

    def heard(self, notice: Mapping[str, Any]) -> None:
        """Take the recorder's own word, unless it is of before what a person said last."""
        state, path = str(notice.get("state")), notice.get("path")
        if state == "off" or self._state["state"] == "off":
            return
        if path is not None and state != "moved" and self._path is not None and Path(path) != self._path:
            return
        self._word.set()
        if state == "recording" and self._moved is not None:
            self._set("moved", self._path, self._moved)
        else:
            self._set(state, self._path if path is None else Path(path), str(notice.get("message") or ""))

    def _set(self, state: str, path: Path | None, message: str) -> None:
        new = {"state": state, "path": None if path is None else str(path), "message": message}
        if new != self._state:
            self._state = new


def left_behind() -> dict[str, str] | None:
    """`{"path", "message"}` of the newest session that ended without goodbye, told once; None if there is none."""
    try:
        found = sessions.left_without_goodbye()
        if found is None:
            return None
        sessions.mark_told(found)
    except Exception:  # whatever lies in that folder, this session must start
        LOG.exception("the recordings of earlier sessions cannot be looked through")
        return None
    message = (
        f"The last session (started {moment(found.started)}, {span(found.seconds)}) ended without goodbye: "
        f"its recording is {found.path}. See it with %monitor open {found.path}."
    )
    return {"path": str(found.path), "message": message}


def words(recording: Mapping[str, Any]) -> str:
    """A recording's state as a line of text."""
    if recording["state"] in ("recording", "moved"):
        line = f"recording to {shown(recording['path'])}"
        return f"{line} ({recording['message']})" if recording["message"] else line
    return f"not recording: {recording['message']}"
