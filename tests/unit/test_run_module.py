"""The processes beside the kernel: an interrupt of the kernel is not for them, and they end with their time."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.stream.render import run_module

TELL = """
import json, os, sys
sys.stdin.read()
print(json.dumps([os.getsid(0), os.getpgrp()]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sessions and niceness are of POSIX")
def test_it_is_in_a_group_of_its_own_and_in_the_kernels_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "telling.py").write_text(TELL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    session, group = json.loads(run_module("telling", b""))
    assert group != os.getpgrp()
    # In a session of its own Linux would give it as much of the processor as all that trains, whatever its niceness.
    assert session == os.getsid(0)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are of POSIX")
def test_one_that_takes_too_long_is_ended_with_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    (tmp_path / "sleeping.py").write_text(f"import os, pathlib, time\n{tell}\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MonitorError, match="did not finish within 2 s"):
        run_module("sleeping", b"", timeout=2)
    worker = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{worker}/cmdline").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.05)
