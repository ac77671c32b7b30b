"""Processes beside the kernel: their priority, their group, their failures and the time that they may take."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.stream.render_process import NICENESS, run_module

REPORT = """
import json, os, sys
if __name__ == "__main__":
    print(json.dumps([sys.stdin.read(), sys.argv[1:], os.getsid(0), os.getpgrp(), os.nice(0)]))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of a text that a process can import; returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(text: str) -> str:
        (tmp_path / "a_module.py").write_text(text, encoding="utf-8")
        return "a_module"

    return write


@pytest.mark.skipif(sys.platform == "win32", reason="sessions and niceness are of POSIX")
@pytest.mark.parametrize("low_priority", [True, False])
def test_it_runs_as_a_module_does_in_the_kernels_session_with_a_niceness_of_its_own(
    module: Callable[[str], str], low_priority: bool
) -> None:
    read, arguments, session, group, niceness = json.loads(
        run_module(module(REPORT), b"abc", low_priority=low_priority)
    )
    assert (read, arguments) == ("abc", [])
    assert group != os.getpgrp()
    # In a session of its own Linux would give it as much of the processor as all that trains, whatever its niceness.
    assert session == os.getsid(0)
    assert niceness == min(19, os.nice(0) + (NICENESS if low_priority else 0))


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        ("sys.exit(3)", 3, "no message"),
        ("sys.exit('no such session')", 1, "no such session"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, "no message"),
    ],
)
def test_a_failure_carries_the_exit_status_and_the_last_line(
    module: Callable[[str], str], ending: str, status: int, error: str
) -> None:
    name = module(f"import os, signal, sys\n{ending}\n")
    with pytest.raises(MonitorError, match=re.escape(f"a_module failed with exit status {status}: {error}")):
        run_module(name, b"")


def test_a_module_that_is_not_there_fails(module: Callable[[str], str]) -> None:
    module("")
    with pytest.raises(MonitorError, match="No module named another_module"):
        run_module("another_module", b"")


def test_a_large_output_arrives_whole(module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in many containers
    assert len(run_module(module("print('x' * 1_000_000, end='')"), b"")) == 1_000_000


def test_one_that_takes_too_long_is_ended(module: Callable[[str], str], tmp_path: Path) -> None:
    write = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    name = module(f"import os, pathlib, time\n{write}\ntime.sleep(60)\n")
    with pytest.raises(MonitorError, match="did not finish within 2 s"):
        run_module(name, b"", timeout=2)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
