"""Requests of this user's terminals to a session: they come through the ranks' Unix socket, with the ranks' keys.

A request is a message of JSON in one line; a rank's frame has a second one, so that none is taken for the other. None
is taken from the gateway, which other machines reach.
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
from ..text import line, printable_in
from .rank_frames import NAME, fields, flag, maybe, parsed, text, whole

if TYPE_CHECKING:
    from ..protocol.states import LoaderState

VERSION = 1
_MOST_BYTES = 4096
_LETTERS = 48  # of a title
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


def entitle(command: Sequence[str]) -> None:
    """Set what this process is called in the lists of terminals: by the command that it runs."""
    global _title  # noqa: PLW0603 - of the process
    _title = line(shlex.join([Path(command[0]).name, *command[1:]]), _LETTERS)


def request(
    backend: str | None = None, loader: str | None = None, *, confirmed: bool = False, number: int = 0
) -> bytes:
    """Return the message that asks for the loaders of a session, and for a switch of one if there is a `backend`.

    Its answer has the same `number`.
    """
    asked = {"version": str(VERSION), "number": number, "backend": backend, "loader": loader, "confirmed": confirmed}
    return json.dumps(asked).encode()


def is_request(message: bytes) -> bool:
    """Return whether a message is a request, and no frame of a rank."""
    return b"\n" not in message


def answer(message: bytes) -> dict[str, Any]:
    """Do what a request asks for, and return the answer. A ValueError if the message is none."""
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
    return {**found, "loaders": [_shown(state) for state in (*states, *monitor.job_states())]}


def title() -> str:
    """Return what this process is for people: its command, its notebook or its script."""
    if _title is not None:
        return _title
    notebook = os.environ.get("JPY_SESSION_NAME") if "ipykernel" in sys.modules else None
    return Path(notebook or sys.argv[0]).name or "python"


def _shown(state: LoaderState) -> dict[str, Any]:
    whole: dict[str, Any] = printable_in({**state})
    return {name: whole.get(name) for name in _SHOWN}
