"""Real samplers, and everything that they sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from kernel_monitor.sample import pipes
from kernel_monitor.sample.sampler_client import SamplerClient
from tests.unit.checks import wait_for

ROOT = Path(__file__).resolve().parents[2]
NONE: Mapping[str, str] = {}


def gone(pid: int) -> bool:
    """Return whether a process has ended, waited for or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Taken:
    """What a sampler sent, in its order, and the client that read it."""

    def __init__(self, interval: float, **options: Any) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.frames: list[tuple[float, int, dict[str, float]]] = []
        self.notices: list[dict[str, Any]] = []
        self.exits: list[str] = []
        self.order: list[str] = []
        self.newest: Sequence[float] = ()
        self.client = SamplerClient(interval, self._hello, self.frame, self.notices.append, self._exit, **options)

    def _hello(self, hello: dict[str, Any]) -> None:
        self.order.append("hello")
        self.hellos.append(hello)

    def frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        self.order.append("frame")
        self.newest = values
        names = [series["name"] for series in self.hellos[-1]["series"]]
        self.frames.append((stamp, missed, dict(zip(names, values, strict=True))))

    def _exit(self, reason: str) -> None:
        self.order.append("exit")
        self.exits.append(reason)

    @property
    def pid(self) -> int:
        wait_for(lambda: self.client.pid)
        assert self.client.pid is not None
        return self.client.pid

    def more(self, frames: int) -> None:
        """Wait for so many frames more."""
        wanted = len(self.frames) + frames
        wait_for(lambda: len(self.frames) >= wanted)


@contextmanager
def running(interval: float = 0.1, *, frames: int = 5, **options: Any) -> Iterator[Taken]:
    """A client that samples meanwhile, and has `frames` frames."""
    taken = Taken(interval, **options)
    taken.client.start()
    try:
        taken.more(frames)
        yield taken
    finally:
        taken.client.stop()


class Messages:
    """What a sampler process has sent so far; of each frame its values by name, and the hello before it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.frames: list[pipes.Frame] = []
        self.values: list[dict[str, float]] = []
        self.described: list[dict[str, Any]] = []
        self.hellos: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self._decoder = pipes.Decoder()

    def read(self) -> None:
        """Wait for some more."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        assert data, "the sampler ended"
        for kind, payload in self._decoder.feed(data):
            if kind == pipes.FRAME:
                self.frames.append(pipes.decode_frame(payload))
                self.described.append(self.hellos[-1])
                names = [series["name"] for series in self.hellos[-1]["series"]]
                self.values.append(dict(zip(names, self.frames[-1].values, strict=True)))
            else:
                (self.hellos if kind == pipes.HELLO else self.notices).append(pipes.decode_json(payload))

    def listen(self, frames: int) -> None:
        """Wait for so many frames more."""
        wanted = len(self.frames) + frames
        while len(self.frames) < wanted:
            self.read()


@contextmanager
def sampler(
    *options: str, command: Sequence[str] = ("-m", "kernel_monitor.sample"), environment: Mapping[str, str] = NONE
) -> Iterator[subprocess.Popen[bytes]]:
    """A sampler process, which is killed at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *command, *options],
        stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, cwd=ROOT, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
