"""Rendering in a process of its own: Bokeh never runs, and holds no lock, in the process that trains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MonitorError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 300.0


def run_module(
    module: str, stdin: bytes | Callable[[], bytes], *, timeout: float = TIMEOUT_S, governed: bool = True
) -> bytes:
    """Run ``python -m module`` on ``stdin`` and return what it wrote to stdout.

    Args:
        module: its name.
        stdin: the bytes, or what makes them while the process starts and imports.
        timeout: seconds that the process may take from when it has them.
        governed: whether it gives way to what trains (`aside`); else it takes a second, and has a core meanwhile.

    Raises:
        MonitorError: it failed or took longer than ``timeout`` seconds; the message ends with its last line.
    """
    # A group of its own keeps an interrupt of the kernel (sent to its process group) away from the export. No session
    # of its own: Linux shares the processor out by sessions first (sched(7), autogroup), and this process would get as
    # much of it as all that trains.
    process = subprocess.Popen(
        [sys.executable, "-S", "-P", str(Path(__file__).with_name("aside.py")), module]
        if governed
        else command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=environment(),
    )
    with process:
        try:
            out, told = process.communicate(stdin() if callable(stdin) else stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise MonitorError(f"{module} did not finish within {timeout:g} s.") from None
        finally:
            if process.returncode is None:
                _kill(process)
    if process.returncode != 0:
        lines = told.decode(errors="replace").strip().splitlines() or ["no message"]
        raise MonitorError(f"{module} failed with exit status {process.returncode}: {lines[-1]}")
    return out


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours; -P: a random.py in the notebook's folder must not be imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """The environment in which it finds this very package."""
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)  # what does the work is a child of it
    else:
        process.kill()
