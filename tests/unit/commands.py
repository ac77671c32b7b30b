"""The command line, called as a process and in this one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kernel_monitor import cli


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `kernel-monitor` in a process of its own."""
    command = [sys.executable, "-m", "kernel_monitor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    """Call `kernel-monitor` in this process; return its status and what it said on stdout and stderr."""
    try:
        status: Any = cli.main([str(one) for one in arguments])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


def refusal(said: str) -> str:
    """Return the one line of a refusal, which is no traceback and has no number in it."""
    assert said.startswith("kernel-monitor")
    assert said.count("\n") == 1
    assert "Errno" not in said
    return said.strip()
