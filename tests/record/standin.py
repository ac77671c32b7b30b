"""A kernel's stand-in: samples and records with a real client, and says which frames it got, until it is ended.

    python -m tests.record.standin FILE SESSION INTERVAL

Prints the sampler's number, then a line of JSON for each frame, `[session time]`, for each notice and restart. A line
on stdin ends it with a goodbye.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from kernel_monitor.sample.clock import SessionClock
from kernel_monitor.sample.sampler_client import SamplerClient


def main() -> None:
    path, session, interval = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    zero, origin = time.monotonic(), time.time()

    def say(what: object) -> None:
        # One write: what the kernel had got when it was killed is in the pipe.
        os.write(1, (json.dumps(what) + "\n").encode())

    def on_frame(stamp: float, missed: int, values: array[float]) -> None:
        moment = client.clock.time(stamp)
        say({"frame": moment, "missed": missed, "width": len(values)})
        client.send({"do": "values", "rows": [[moment, {"loader/a/images": moment}]]})
        client.send({"do": "event", "event": {"kind": "tick", "time": moment}})

    def on_notice(notice: dict[str, Any]) -> None:
        say({"notice": notice})

    client = SamplerClient(
        interval,
        lambda _hello: say({"pid": client.pid}),
        on_frame,
        on_notice,
        lambda reason: say({"exit": reason}),
        clock=SessionClock(zero, origin),
        session=session,
        record=path,
    )
    client.start()
    client.send({"do": "facts", "facts": {"versions": {"python": sys.version.split()[0]}}})
    for line in sys.stdin:
        command = json.loads(line)
        if command == "goodbye":
            client.send({"do": "goodbye", "reason": "stopped"})
            break
        client.send(command)
    client.stop()


if __name__ == "__main__":
    main()
