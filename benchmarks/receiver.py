"""A client that subscribes to a kernel's monitor and receives every message, as a page in a browser would.

    python -m benchmarks.receiver CONNECTION_FILE

It renews its subscription while its stdin is open, then prints one line of JSON: frames and bytes received, sequence
numbers that were missing between them, and the CPU seconds that it used itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from jupyter_client.blocking.client import BlockingKernelClient

from kernel_monitor.protocol.message_types import PROTOCOL

RENEW_S = 5.0


class Received(NamedTuple):
    """A receiver's counts: frames, bytes of all messages, missing sequence numbers, its own CPU seconds."""

    frames: int
    bytes: int
    missing: int
    cpu_s: float


class Receiver:
    """A receiver in a process of its own; `finish` ends it."""

    def __init__(self, connection_file: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.receiver", connection_file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> Received:
        output, _ = self._process.communicate(timeout=30)
        return Received(**json.loads(output))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextmanager
def receiving(connection_file: str) -> Iterator[Receiver]:
    """Run a receiver during the block."""
    receiver = Receiver(connection_file)
    try:
        yield receiver
    finally:
        receiver.close()


def main() -> None:
    """Receive until stdin ends."""
    client = BlockingKernelClient(connection_file=sys.argv[1])
    client.load_connection_file()
    client.start_channels(shell=False, stdin=False, hb=False)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    socket = client.iopub_channel.socket
    frames = missing = size = 0
    last: tuple[str, int] | None = None
    due = 0.0
    while not ended.is_set():
        if time.monotonic() >= due:
            due = time.monotonic() + RENEW_S
            request("subscribe", client)
        if socket.poll(200) == 0:
            continue
        parts = socket.recv_multipart(copy=True)
        size += sum(map(len, parts))
        # <identities> <delimiter> <signature> header parent metadata content buffers…
        start = parts.index(b"<IDS|MSG>")
        if b"kernel_monitor_frame" not in parts[start + 2]:
            continue
        content = json.loads(parts[start + 5])
        frames += 1
        if last is not None and last[0] == content["session"]:
            missing += max(0, content["seq"] - last[1] - 1)
        last = (content["session"], content["seq"])
    request("unsubscribe", client)
    client.stop_channels()
    print(json.dumps({"frames": frames, "bytes": size, "missing": missing, "cpu_s": time.process_time()}))


def request(command: str, client: BlockingKernelClient) -> None:
    """Send a request on the control channel, and discard the reply."""
    args: dict[str, Any] = {"client": "benchmark"}
    content = {"protocol": PROTOCOL, "command": command, "args": args}
    client.control_channel.send(client.session.msg("kernel_monitor_request", content))
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if client.control_channel.socket.poll(100):
            client.control_channel.socket.recv_multipart()
            return


if __name__ == "__main__":
    main()
