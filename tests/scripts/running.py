"""Runs scripts: in a fork of a process that has imported torch, or as `python script.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 300.0  # of one script, on a machine that other tests have filled
GONE_S = 10.0  # in which the processes of a script that has ended are gone
PRELOADED = ("torch", "torchvision.transforms.v2", "torchvision.datasets", "torch.utils.data")
FRAMEWORKS = (*PRELOADED, "datasets", "monai.data", "monai.transforms")


@dataclass
class Ended:
    """How a script ended. `code` is None where it did not, within `LIMIT_S`; `left`: of its processes some remained."""

    script: Path
    code: int | None
    left: bool

    @property
    def out(self) -> str:
        return (self.script.parent / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.script.parent / "stderr").read_text()


class Forking:
    """A process that has imported some modules, and of whose forks each runs one script."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(self, folder: Path) -> Ended:
        """Run a folder's script.py there."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, str(HERE / "forking.py"), *self._modules], stdin=subprocess.PIPE, text=True
                )
            assert self._process.stdin is not None
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()
        pid = int(_awaited(folder / "pid", LIMIT_S) or 0)
        assert pid, "the process that forks has ended"
        code = _awaited(folder / "code", LIMIT_S)
        return _ended(folder, pid, None if code is None else int(code))

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def start(folder: Path) -> Ended:
    """Run a folder's script.py there, as people do."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        code: int | None = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    ended = _ended(folder, process.pid, code)
    process.wait()
    return ended


def _awaited(file: Path, seconds: float) -> str | None:
    until = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > until:
            return None
        time.sleep(0.02)
    return file.read_text()


def _ended(folder: Path, group: int, code: int | None) -> Ended:
    """Look for processes of a script's group, and end them."""
    until = time.monotonic() + (0 if code is None else GONE_S)
    left = True
    while left and time.monotonic() < until:
        time.sleep(0.02)
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            left = False
    if left:
        os.killpg(group, signal.SIGKILL)
    return Ended(folder / "script.py", code, left)
