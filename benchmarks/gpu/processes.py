"""A part in a process group of its own, with its output in a file and a limit on its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .parts import ROOT

GRACE_S = 5.0


class Ended(NamedTuple):
    """How a process ended: its exit status, None where it was stopped at its limit, and its time in s."""

    status: int | None
    seconds: float


def run(arguments: Sequence[str], output: Path, limit_s: float) -> Ended:
    """Run this Python; everything that the process leaves running is ended with it, also by Ctrl-C."""
    # Plugins of pytest that happen to be installed have no part in it.
    settings = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, **settings}
    # Only what is not installed is taken from here.
    environment["PYTHONPATH"] = os.pathsep.join(
        place for place in (environment.get("PYTHONPATH", ""), str(ROOT)) if place
    )
    begun = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
    return Ended(status, time.monotonic() - begun)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: first with a request, then without."""
    if process.poll() is None:
        signalled(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            process.wait(GRACE_S)
    signalled(process, signal.SIGKILL)
    process.wait()


def signalled(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, number)
