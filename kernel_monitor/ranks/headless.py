"""`kernel-monitor run`: a command whose processes join a session, of a kernel or of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from . import session_files
from .session_files import KEYS, VARIABLE, JoinError


def run(command: Sequence[str], place: str | None) -> int:
    """Run a command, whose processes join the session of a folder or address, if given; returns its exit status.

    An interrupt is the command's to handle, which gets it too. JoinError: there is no such session or command.
    """
    environment = dict(os.environ)
    if place is not None:
        session_files.read(place, os.environ.get(KEYS))
        environment[VARIABLE] = place if place.startswith("tcp:") else os.path.abspath(place)  # noqa: PTH100 - as given
    # A handler and not SIG_IGN, which the command would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = subprocess.Popen(command, env=environment)
        status = process.wait()
    except OSError as error:
        raise JoinError(f"{command[0]} cannot be run: {error.strerror}.") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status
