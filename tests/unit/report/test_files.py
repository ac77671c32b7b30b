"""The report's process: the same page, and errors that say why."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.report.page import render
from kernel_monitor.store import Snapshot
from kernel_monitor.stream.render_process import render_report
from tests.unit.analysis.test_compare_segments import session
from tests.unit.checks import loaded_by


def test_a_process_of_its_own_renders_the_same_page() -> None:
    snapshot = session()
    same = re.compile(r'"p\d+"|[0-9a-f-]{36}')
    assert same.sub("", render_report(snapshot)) == same.sub("", render(snapshot))


def test_rendering_that_takes_too_long_is_an_error() -> None:
    with pytest.raises(MonitorError, match="did not finish within"):
        render_report(session(), timeout=0.01)


def test_what_is_no_snapshot_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "kernel_monitor.report"]
    done = subprocess.run(command, input=b"nonsense", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"this is not a readable snapshot")
    assert done.stderr.count(b"\n") == 1


def test_importing_it_imports_no_bokeh() -> None:
    assert loaded_by("import kernel_monitor.report, kernel_monitor.stream.render_process", "bokeh") == []


def test_a_snapshot_that_cannot_be_read_ends_the_process_that_waits_for_it() -> None:
    def damaged() -> Snapshot:
        raise SessionError("the session is damaged")

    with pytest.raises(SessionError, match="the session is damaged"):
        render_report(damaged)
