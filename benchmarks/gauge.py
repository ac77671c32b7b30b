"""A gauge of this machine's present speed: the CPU time of decoding an image, four times a second until stdin ends.

    python -m benchmarks.gauge FILE

It prints `time.monotonic()`, the seconds to decode the image, and the core-seconds that the hypervisor has given to
other machines since the boot (steal). It uses about a hundredth of a core.
"""

from __future__ import annotations

import io
import os
import select
import sys
import time
from pathlib import Path

from PIL import Image

PERIOD_S = 0.25


def main(file: Path) -> None:
    """Measure until stdin is closed."""
    data = file.read_bytes()
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        began = time.thread_time()
        Image.open(io.BytesIO(data)).convert("RGB")
        print(time.monotonic(), time.thread_time() - began, stolen())


def stolen() -> float:
    """Return the stolen core-seconds since the boot; 0 if the system does not count them."""
    try:
        return int(Path("/proc/stat").read_text("ascii").split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
