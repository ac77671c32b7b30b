"""The magics in a plain IPython shell: no kernel, no page, text only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "kernel_monitor")
    yield shell
    shell.run_line_magic("unload_ext", "kernel_monitor")
    InteractiveShell.clear_instance()
    assert not [one for one in threading.enumerate() if one.name.startswith("kernel-monitor")]
    assert not monitor.running


def wait_for_samples() -> None:
    until = time.monotonic() + 20
    before = monitor.store.last_seq
    while monitor.store.last_seq < before + 5:
        assert time.monotonic() < until, monitor.status()
        time.sleep(0.05)


def test_the_dashboard_is_text_without_a_page(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    shell.run_line_magic("monitor", "")
    text = capsys.readouterr().out
    assert "kernel_monitor" in text
    assert "CPU" in text
    assert "samples" in text
    shell.run_line_magic("monitor", "status")
    assert "running" in capsys.readouterr().out
    shell.run_line_magic("monitor", "stop")
    shell.run_line_magic("monitor", "status")
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dance", "invalid choice"),
        ("start --interval 0.001", "between 0.05 and 60"),
        ("start --interval soon", "invalid float"),
        ("switch dali-cpu", "no switchable loader"),
        ("switch", "required"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(shell: InteractiveShell, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        shell.run_line_magic("monitor", line)


def test_an_interval_can_be_changed_while_running(shell: InteractiveShell) -> None:
    shell.run_line_magic("monitor", "start --interval 0.1")
    wait_for_samples()
    session = monitor.session
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    assert monitor.session == session
    assert monitor.store.schema.interval == 0.05
    newest = monitor.store.rows(monitor.store.last_seq - 4).time
    assert newest[-1] - newest[0] < 0.6


def test_loading_twice_registers_once(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "kernel_monitor")
    assert len([one for one in shell.events.callbacks["pre_run_cell"] if "Extension" in repr(one)]) == 1
