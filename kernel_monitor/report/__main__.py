"""`python -m kernel_monitor.report`: a snapshot's bytes on stdin, the HTML file on stdout."""

from __future__ import annotations

import gc
import sys

from ..errors import MonitorError
from ..store import Snapshot


def main() -> int:
    """Exit status 0, or 2 and one line on stderr when stdin is not a snapshot."""
    # Hundreds of thousands of models and strings, none of them garbage before the process ends.
    gc.disable()
    # What takes longest comes before the bytes are there: whoever sends them is still reading the session.
    from .page import compile_templates, render

    compile_templates()

    try:
        snapshot = Snapshot.from_bytes(sys.stdin.buffer.read())
    except MonitorError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.buffer.write(render(snapshot).encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
