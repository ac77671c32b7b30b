"""The process beside the kernel: it gives way to what trains, and an interrupt of the kernel is not for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kernel_monitor.stream.aside import NICENESS
from kernel_monitor.stream.render import run_module

TELL = """
import json, os, sys
sys.stdin.read()
print(json.dumps([os.getsid(0), os.getpgrp(), os.getpid(), os.nice(0)]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sessions and niceness are of POSIX")
def test_it_is_in_a_group_of_its_own_and_in_the_kernels_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "telling.py").write_text(TELL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    session, group, pid, nice = json.loads(run_module("telling", b""))
    assert group == pid
    # In a session of its own Linux would give it as much of the processor as all that trains, whatever its niceness.
    assert session == os.getsid(0)
    assert nice == min(19, os.nice(0) + NICENESS)
