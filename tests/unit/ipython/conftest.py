"""A plain IPython shell with the magics loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor
from tests.unit.checks import wait_for

Magic = Callable[[str], str]


def wait_for_samples() -> None:
    before = monitor.store.last_seq
    wait_for(lambda: monitor.store.last_seq >= before + 5)


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


@pytest.fixture
def magic(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Magic:
    """Run `%monitor …`, and return what it printed."""

    def run(line: str) -> str:
        capsys.readouterr()
        shell.run_line_magic("monitor", line)
        return capsys.readouterr().out

    return run


@pytest.fixture
def cell(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Magic:
    """Run a cell, and return what it printed."""

    def run(source: str) -> str:
        capsys.readouterr()
        shell.run_cell(source)
        return capsys.readouterr().out

    return run
