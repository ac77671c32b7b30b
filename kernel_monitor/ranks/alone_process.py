"""Runs a command until its own stdin ends, then ends the command and its children: `FOLDER COMMAND …`.

A process of its own, so that nothing goes on when the kernel that asked for it is killed. Prints the command's process
number, and exits with its status.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress

PATIENCE_S = (5.0, 3.0)  # after SIGINT, and after SIGTERM


def main() -> int:
    folder, *command = sys.argv[1:]
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    ) as it:
        sys.stdout.write(f"{it.pid}\n")
        sys.stdout.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            while it.poll() is None and not selector.select(0.1):
                pass
        for number, patience in zip((signal.SIGINT, signal.SIGTERM), PATIENCE_S, strict=True):
            _signal(it.pid, number)
            if _ended(it, patience):
                break
        _signal(it.pid, signal.SIGKILL)  # its children too, which may be left
        return it.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.returncode is not None


if __name__ == "__main__":
    sys.exit(main())
