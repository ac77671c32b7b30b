"""`python -m kernel_monitor.report`: a snapshot's bytes on stdin, the HTML file on stdout."""

from __future__ import annotations

import sys

from ..errors import MonitorError
from ..store import Snapshot
from . import render


def main() -> int:
    """Exit status 0, or 2 and one line on stderr when stdin is not a snapshot."""
    try:
        snapshot = Snapshot.from_bytes(sys.stdin.buffer.read())
    except MonitorError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.buffer.write(render(snapshot).encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
