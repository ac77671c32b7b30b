"""The kernel's half of the gateway: starts its process, starts it again when it has ended, and ends it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from ..os_process import child_environment
from ..text import line
from .session_files import JoinError, SessionFiles

START_S = 20.0  # how long it may take to listen: it shares the cores with the training
GRACE_S = 2.0  # how long it may take to end
EARLY_S = 10.0  # one that lived this long did not end early
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 15.0, 60.0)  # pauses before a start, by how many ended early before
LETTERS = 200  # of a reason


class GatewayClient:
    """A gateway that listens (`tcp_gateway`). Used by the server's thread once it is made.

    Attributes:
        address: where it listens, with the port.
        name: of the connection by which its messages come.
        restarts: how often it was started again.
        reason: why it ended last; None if it never did.
    """

    def __init__(self, address: str, kernel: str, files: SessionFiles) -> None:
        """Listen at `address`; `kernel`: the address to which messages are passed on. A JoinError where it cannot."""
        self._kernel = kernel
        self._socket = files.folder / "tcp"
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._state: dict[str, int] = {}  # what it said last
        self.name = b""
        self.restarts = 0
        self.reason: str | None = None
        self._early = 0
        self._due = 0.0
        wanted = files.bound.get(address, address)
        try:
            self.address = self._first(wanted)
        except JoinError:
            if wanted == address:
                raise
            self.address = self._first(address)  # another program has the port that it had: any other will do
        files.bound[address] = self.address

    def words(self) -> list[str]:
        """Return sentences for the status."""
        found = []
        if self._process is None:
            found.append(f"ranks over TCP: nobody can join now, as the process that listens has ended: {self.reason}")
        elif self._state:
            count, most, refused = (self._state[name] for name in ("connections", "most", "refused"))
            full = "; no more can join until some end" if count >= most else ""
            wrong = f"; {refused:,} messages were refused" if refused else ""
            found.append(f"ranks over TCP at {self.address}: {count} of at most {most} connections{full}{wrong}")
        if self.restarts:
            times = f"{self.restarts} time{'s' * (self.restarts > 1)}"
            found.append(f"the process that listens for ranks was started again {times}, the last time: {self.reason}")
        return found

    def take(self, message: bytes) -> None:
        """Record a message in which the gateway describes itself."""
        found: dict[str, Any] = json.loads(message)
        self._state = {name: int(found[name]) for name in ("connections", "most", "refused")}

    def refresh(self) -> None:
        """Start it again if it has ended; waits for nothing."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self.reason = self._cause(self._process)
            _close(self._process)
            self._process, self._state = None, {}
            self._early = self._early + 1 if now - self._began < EARLY_S else 0
            self._due = now + BACK_OFF_S[min(self._early, len(BACK_OFF_S) - 1)]
        if self._process is None and now >= self._due:
            self._due = now + BACK_OFF_S[-1]
            try:
                self._start(self.address)
                self.restarts += 1
            except OSError as error:
                self.reason = f"it cannot be started: {error}"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._socket.unlink(missing_ok=True)  # libzmq leaves the name

    def forget_in_child(self) -> None:
        """Close the copies of the pipes that a forked child has; the process is the parent's."""
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # not ours to wait for
            _close(process)

    def _first(self, address: str) -> str:
        """Start it and wait until it listens; returns its address."""
        try:
            process = self._start(address)
        except OSError as error:
            raise JoinError(
                f"Ranks cannot join: {address} (no process that listens can be started: {error})."
            ) from None
        out = process.stdout
        if out is None or not wait([out.fileno()], START_S):
            self.stop()
            raise JoinError(f"Ranks cannot join: {address} (nothing listens there after {START_S:g} s).")
        said = _said(out.readline())
        if "bound" not in said:
            self.stop()
            raise JoinError(f"Ranks cannot join: {address} ({said.get('failed', 'the process that listens ended')}).")
        return said["bound"]

    def _start(self, address: str) -> subprocess.Popen[bytes]:
        keys = self._files.keys
        if keys is None:
            raise JoinError("Ranks cannot join: there are no keys yet.")
        self.name = secrets.token_hex(16).encode()  # so that nobody else speaks for it
        self._began = time.monotonic()
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernel_monitor.ranks.tcp_gateway"],
            bufsize=0,  # a buffer has a lock, which a forked child would wait for
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            process_group=0,  # an interrupt of the kernel is not for it; a session of its own would undo its niceness
        )
        told = {
            "address": address,
            "kernel": self._kernel,
            "socket": str(self._socket),
            "name": self.name.decode(),
            "keys": {name: key.decode() for name, key in keys._asdict().items()},
            "parent": os.getpid(),
        }
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended already, which the next refresh finds
                process.stdin.write(json.dumps(told).encode() + b"\n")
        return process

    @staticmethod
    def _cause(process: subprocess.Popen[bytes]) -> str:
        """Return why a process ended that has ended."""
        lines = [] if process.stdout is None else process.stdout.read().splitlines()
        said = [words["failed"] for words in map(_said, lines) if "failed" in words]
        if said:
            return line(said[-1], LETTERS)
        code = process.returncode
        if code >= 0:
            return f"it ended with status {code}"
        with suppress(ValueError):
            return f"it was killed by {signal.Signals(-code).name}"
        return f"it was killed by signal {-code}"


def _said(words: bytes) -> dict[str, str]:
    try:
        found = json.loads(words)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
