"""Requests of `kernel-monitor switch` to a session: they come through the ranks' Unix socket, with the ranks' keys.

A request is one line of JSON; a rank's frame has two lines, so the two kinds of messages cannot be confused. Requests
from the gateway, which other machines can reach, are not accepted.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..field_checks import fields, flag, maybe, text, whole
from ..text import line, printable_in
from .rank_frames import NAME, parsed

if TYPE_CHECKING:
    from ..protocol.states import LoaderState

VERSION = 1
_MOST_BYTES = 4096
_LETTERS = 48  # letters of a title at most
_REQUEST = fields(
    {
        "version": maybe(text(NAME)),
        "number": whole(),
        "backend": maybe(text(NAME)),
        "loader": maybe(text(NAME)),
        "confirmed": flag,
    },
    version=None,
    number=0,
    backend=None,
    loader=None,
    confirmed=False,
)
_SHOWN = ("id", "name", "backend", "wanted", "status", "backends", "epoch", "batch", "batches")
_title: str | None = None


def set_title(command: Sequence[str]) -> None:
    """Set the title of this process in the list of `kernel-monitor switch` to the command that it runs."""
    global _title  # noqa: PLW0603 - of the process
    _title = line(shlex.join([Path(command[0]).name, *command[1:]]), _LETTERS)


def request(
    backend: str | None = None, loader: str | None = None, *, confirmed: bool = False, number: int = 0
) -> bytes:
    """Return a message that asks for the loaders of a session, and for a switch of one if `backend` is given.

    The answer has the same `number`.
    """
    asked = {"version": str(VERSION), "number": number, "backend": backend, "loader": loader, "confirmed": confirmed}
    return json.dumps(asked).encode()


def is_request(message: bytes) -> bool:
    """Return whether a message is a request rather than a rank's frame."""
    return b"\n" not in message


def answer(message: bytes) -> dict[str, Any]:
    """Do what a request asks for, and return the answer, which can be encoded as JSON.

    Raises:
        ValueError: the message is not a request of this version.
    """
    if len(message) > _MOST_BYTES:
        raise ValueError("a request with too many bytes")
    asked = _REQUEST(parsed(message))
    if asked["version"] != str(VERSION):
        raise ValueError("a request of another version")
    from ..runtime import monitor

    found: dict[str, Any] = {"number": asked["number"], "pid": os.getpid(), "title": title()}
    if asked["backend"] is not None:
        try:
            state = monitor.switch(asked["backend"], loader=asked["loader"], confirmed=asked["confirmed"])
            found["switched"] = state["id"]
        except MonitorError as error:
            found["refused"] = str(error)
    states = [state for state in monitor.loader_states() if not state["ended"]]
    beside = {job.id for job in monitor.live_session.ranks.loaders() if job.beside is not None}
    shown = [{**_shown(state), "beside": state["id"] in beside} for state in (*states, *monitor.job_states())]
    return {**found, "loaders": shown}


def title() -> str:
    """Return the title of this process: its command, its notebook or its script."""
    if _title is not None:
        return _title
    notebook = os.environ.get("JPY_SESSION_NAME") if "ipykernel" in sys.modules else None
    return Path(notebook or sys.argv[0]).name or "python"


def _shown(state: LoaderState) -> dict[str, Any]:
    whole: dict[str, Any] = printable_in({**state})
    return {name: whole.get(name) for name in _SHOWN}
