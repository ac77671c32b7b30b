"""Starts kernels' stand-ins for tests, and knows what they said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ..waiting import until

ROOT = Path(__file__).resolve().parents[2]


class Kernel:
    """One stand-in (`standin`), read by a thread."""

    def __init__(
        self, path: Path, session: str, interval: float = 0.05, environment: dict[str, str] | None = None
    ) -> None:
        self.path = path
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.record.standin", str(path), session, repr(interval)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    @property
    def frames(self) -> list[float]:
        """Session times of the frames that it got."""
        return [one["frame"] for one in list(self.said) if "frame" in one]

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [one["notice"] for one in list(self.said) if "notice" in one]

    @property
    def states(self) -> list[Any]:
        """The states of the recorder that it was told of."""
        return [notice.get("state") for notice in self.notices]

    @property
    def sampler(self) -> psutil.Process:
        """Its newest sampler."""
        return psutil.Process(next(one["pid"] for one in reversed(list(self.said)) if "pid" in one))

    def wait_for(self, ready: Callable[[], bool], seconds: float = 30.0) -> None:
        until(ready, seconds, lambda: f"it said {self.said[-5:]}, exit {self.process.poll()}")

    def wait_for_frames(self, more: int) -> int:
        """Wait for some frames more than it has; return how many there were."""
        before = len(self.frames)
        self.wait_for(lambda: len(self.frames) > before + more)
        return before

    def tell(self, command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Have it say goodbye, and wait."""
        sampler = self.sampler
        self.tell("goodbye")
        self.gone(sampler)

    def gone(self, sampler: psutil.Process, seconds: float = 20.0) -> None:
        """Wait until it and its sampler have ended, and everything that it said is read."""
        self.process.wait(seconds)
        self._reader.join(seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            sampler.wait(seconds)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()

    def clean(self) -> None:
        """End whatever is left of it."""
        samplers = [one["pid"] for one in self.said if one.get("pid")]
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
        for pid in samplers:
            with contextlib.suppress(psutil.NoSuchProcess):
                sampler = psutil.Process(pid)
                if "kernel_monitor.sample" in sampler.cmdline():
                    sampler.wait(20)
