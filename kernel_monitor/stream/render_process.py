"""Rendering in a process of its own: Bokeh never runs, and holds no lock, in the process that trains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MonitorError
from ..own_files import NoPlace, expanded

if TYPE_CHECKING:
    from ..store import Snapshot

TIMEOUT_S = 300.0
NICENESS = 5
"""With it a process gets a quarter of a core that a training thread wants too (sched(7)), and all of an idle core."""
_NO_HOME = "/nonexistent"  # as Debian names it: nobody can put files there that would be read


def run_module(
    module: str, stdin: bytes | Callable[[], bytes], *, timeout: float = TIMEOUT_S, low_priority: bool = True
) -> bytes:
    """Run ``python -m module`` on ``stdin`` and return what it wrote to stdout.

    Args:
        stdin: the bytes, or what makes them while the process starts and imports.
        timeout: seconds that the process may take from when it has them.
        low_priority: leave most of the processor to training (`NICENESS`). Windows has no niceness.

    Raises:
        MonitorError: it failed or took longer than ``timeout`` seconds; the message ends with its last line.
    """
    # A group of its own keeps an interrupt of the kernel (sent to its process group) away from the export. No session
    # of its own: Linux shares the processor out by sessions first (sched(7), autogroup), and niceness would not count.
    process = subprocess.Popen(
        command(module, niceness=NICENESS if low_priority and hasattr(os, "nice") else 0),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=environment(),
    )
    with process:
        try:
            out, error = process.communicate(stdin() if callable(stdin) else stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise MonitorError(f"{module} did not finish within {timeout:g} s.") from None
        finally:
            if process.returncode is None:
                process.kill()
    if process.returncode != 0:
        lines = error.decode(errors="replace").strip().splitlines() or ["no message"]
        raise MonitorError(f"{module} failed with exit status {process.returncode}: {lines[-1]}")
    return out


def command(module: str, *arguments: str, niceness: int = 0) -> list[str]:
    """Return the command that runs a module of ours; it sets its own niceness first, and ends with this process."""
    nice = f"import os; os.nice({niceness}); " if niceness else ""
    watch = f"from kernel_monitor.os_process import end_with; end_with({os.getpid()}); "
    start = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    # -P: a random.py in the notebook's folder must not be imported
    return [sys.executable, "-P", "-c", f"{nice}{watch}{start}", *arguments]


def environment() -> dict[str, str]:
    """Return an environment in which the process imports this very package."""
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        expanded("~")
    except NoPlace:  # Bokeh cannot be imported by an account without a home
        variables["HOME"] = _NO_HOME
    return variables


def render_report(snapshot: Snapshot | Callable[[], Snapshot], timeout: float = TIMEOUT_S) -> str:
    """Return the session as the text of one HTML file, made by `python -m kernel_monitor.report`.

    `snapshot` may be what reads it while the process starts. A MonitorError is raised if the process fails, or takes
    longer than `timeout` seconds from when it has the snapshot.
    """

    def content() -> bytes:
        return (snapshot() if callable(snapshot) else snapshot).to_bytes()

    # One that is there is packed before the process starts: beside a training loop not both in the same step.
    stdin = content if callable(snapshot) else content()
    return run_module("kernel_monitor.report", stdin, timeout=timeout).decode("utf-8")
