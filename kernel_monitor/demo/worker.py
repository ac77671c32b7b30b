"""A process that makes some pictures of a demo set: `python -m kernel_monitor.demo.worker`.

It reads one JSON object from stdin (`root`, `recipe`, `indices`) and prints the number of each picture that is on
the disk. It ends with the pipe that it prints to, at most a picture after the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from kernel_monitor.errors import MonitorError

from .generate import Recipe


def main() -> int:
    """Carries out the order on stdin; exit status 0 if all pictures were made."""
    order = json.load(sys.stdin)
    root, recipe = Path(order["root"]), Recipe(**order["recipe"])
    try:
        for index in order["indices"]:
            recipe.make(root, index)
            os.write(1, b"%d\n" % index)  # a line is one system call (print may make two): the pipe is shared
    except BrokenPipeError:
        return 1
    except (MonitorError, OSError) as error:
        os.write(1, f"{error}\n".encode(errors="replace"))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
