"""After stop, unload, shutdown and kill -9 there is no process, thread, handler or stream of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from ..waiting import until
from .kernels import KERNELS, Page, kernel

OUR_THREADS = (
    "sorted(t.name for t in __import__('threading').enumerate() if 'kernel' in t.name and 'monitor' in t.name)"
)
HANDLER = "'kernel_monitor_request' in get_ipython().kernel.control_handlers"


def samplers_of(pid: int, *, seconds: float = 5) -> list[psutil.Process]:
    """The sampler processes below a kernel, as soon as there is one (it starts in the background)."""
    return until(lambda: [p for p in psutil.Process(pid).children(recursive=True) if _is_sampler(p)], seconds)


def _is_sampler(process: psutil.Process) -> bool:
    try:
        return "kernel_monitor.sample" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def test_stop(page: Page) -> None:
    found = samplers_of(page.pid)
    assert len(found) == 1
    assert page.value(OUR_THREADS)
    page.ask("subscribe", client="one")
    page.run("%monitor stop")
    assert gone(found, 3)
    assert page.value(OUR_THREADS) == []
    page.iopub(0.3)
    assert page.frames(1.0) == []


def test_unload(page: Page) -> None:
    found = samplers_of(page.pid)
    page.ask("subscribe", client="one")
    page.run("%unload_ext kernel_monitor")
    assert gone(found, 3)
    assert page.value(OUR_THREADS) == []
    assert page.value(HANDLER) is False
    assert page.value("'monitor' in get_ipython().magics_manager.magics['line']") is False
    page.iopub(0.3)
    assert page.frames(1.0) == []
    page.run("%load_ext kernel_monitor\n%monitor start")
    assert page.ask("hello")["running"] is True


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("how", ["shutdown", "kill"])
def test_the_end_of_the_kernel(name: str, how: str) -> None:
    with kernel(name) as page:
        page.run("%load_ext kernel_monitor\n%monitor start")
        pid = page.pid
        found = samplers_of(pid)
        assert len(found) == 1
        # A forked child inherits the sampler's pipe and outlives the kernel, as a loader worker may.
        child = int(page.value("(lambda pid: pid or __import__('time').sleep(30))(__import__('os').fork())"))
        try:
            if how == "kill":
                os.kill(pid, signal.SIGKILL)
            else:
                page.manager.shutdown_kernel(now=False)
            assert gone(found, 5)
        finally:
            with contextlib.suppress(ProcessLookupError):  # ipykernel ends its children itself when it shuts down
                os.kill(child, signal.SIGKILL)


def test_an_interrupt_reaches_the_cell_only(page: Page) -> None:
    found = samplers_of(page.pid)
    page.start("import time; time.sleep(30)")
    time.sleep(0.5)
    page.interrupt()
    time.sleep(0.5)
    assert found[0].is_running()
    assert samplers_of(page.pid) == found


def test_a_killed_sampler_is_restarted_and_counted(page: Page) -> None:
    pid = page.pid
    (first,) = samplers_of(pid)
    first.kill()
    gone([first], 3)
    before = page.rows()
    assert len(samplers_of(pid)) == 1
    page.rows(before + 3)
    assert [event["kind"] for event in page.ask("history", since=0)["events"]] == ["sampler-restarted"]


def test_a_loop_outlives_a_dead_sampler_module(page: Page) -> None:
    """If the sampler cannot run at all, the cell goes on and the status says why."""
    page.run("%monitor stop")
    page.run("import sys; _exe, sys.executable = sys.executable, '/nonexistent/python'")
    try:
        page.run("%monitor start")
        until(lambda: "/nonexistent/python" in page.value("__import__('kernel_monitor').monitor.status()"))
        page.run("assert sum(range(10)) == 45")
    finally:
        page.run("%monitor stop\nsys.executable = _exe")
