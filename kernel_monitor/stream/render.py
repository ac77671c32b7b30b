"""Rendering in a process of its own: Bokeh never runs, and holds no lock, in the process that trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..errors import MonitorError

TIMEOUT_S = 120.0


def run_module(module: str, stdin: bytes, *, timeout: float = TIMEOUT_S) -> bytes:
    """Run ``python -m module`` on ``stdin`` and return what it wrote to stdout.

    Raises:
        MonitorError: it failed or took longer than ``timeout`` seconds; the message ends with its last line.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        # -P: a random.py in the notebook's folder must not be imported; the new session keeps an interrupt of the
        # kernel (sent to its process group) away from the export.
        done = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        raise MonitorError(f"{module} did not finish within {timeout:g} s.") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise MonitorError(f"{module} failed with exit status {done.returncode}: {lines[-1]}")
    return done.stdout
