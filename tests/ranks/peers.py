"""What speaks to a ranks' server in tests: a loop, a frame, a socket; and a clock for those that hear it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import zmq

from kernel_monitor.rank import Row
from kernel_monitor.ranks.rank_frames import Frame, Identity
from kernel_monitor.ranks.session_files import Join
from kernel_monitor.steps.measured_step import Step

from ..waiting import until

HEARD_S = 5.0
LOOP = """
import sys, time
from kernel_monitor import watch_loader
for _ in watch_loader(list(range(100_000))):
    time.sleep(0.01)
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def outside(**environment: str) -> dict[str, str]:
    """Return the environment of a process that no session has started, with these variables."""
    inherited = {name: value for name, value in os.environ.items() if name != "KERNEL_MONITOR_JOIN"}
    return {**inherited, "OMP_NUM_THREADS": "1", **environment}


def started(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a Python process with these variables besides our own."""
    return subprocess.Popen([sys.executable, *words], env={**os.environ, **environment})


def frame(number: int = 0) -> Frame:
    """Of a rank of another machine."""
    step = Step(time.monotonic(), 0, number, 4, 0.01, 0.05)
    identity = Identity("other", "other-host", 4000 + number, 1.0, 1, number, 2, "job")
    row: Row = (*step,)
    return Frame(identity, time.monotonic(), 10.0, 80.0, 0, 0, None, None, None, [row])


class Client:
    """A socket that speaks to a server, with these keys or none."""

    def __init__(self, address: str, join: Join | None, secret: str | None = None, public: str | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, int(1000 * HEARD_S))  # for ever, else, once the server has hung up
        if join is not None:
            self.socket.curve_serverkey = join.server.encode()
            self.socket.curve_publickey = (public or join.public).encode()
            self.socket.curve_secretkey = (secret or join.secret).encode()
        self.socket.connect(address)

    def send(self, message: bytes) -> None:
        self.socket.send(message)

    def answered(self, seconds: float) -> bool:
        return bool(self.socket.poll(int(1000 * seconds)))

    def send_until_answered(self, message: bytes) -> None:
        """Send it again and again, as a rank does, until it is heard."""

        def answered() -> bool:
            self.send(message)
            return self.answered(0.5)

        until(answered)

    def close(self) -> None:
        self.context.destroy(linger=0)
