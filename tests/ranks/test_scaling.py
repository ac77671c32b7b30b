"""A job of two ranks and one rank of it alone, run again by a click: the scaling efficiency, and what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from tests.kernel.kernels import Page

from ..waiting import until
from .test_joining import TORCHRUN, rows_of, wait_for


def refusal(page: Page, call: str) -> str:
    """The SessionError of a call."""
    page.run(
        f"try:\n    {call}\n    said = ''\n"
        "except Exception as error:\n    said = f'{type(error).__name__}: {error}'"
    )
    said: str = page.value("said")
    assert said.startswith("SessionError: "), said
    return said


def test_a_job_is_compared_with_one_of_its_ranks_alone(page: Page, port: int, tmp_path: Path) -> None:
    page.run("from kernel_monitor import monitor\nimport sys")
    assert "no job of several ranks" in refusal(page, "monitor.run_alone()").lower()
    page.run(
        "import os, subprocess\n"
        f"words = [sys.executable, *'{TORCHRUN}'.split(), '{port}', '-m', 'tests.ranks.training']\n"
        "process = subprocess.Popen(words, env={**os.environ, 'STEPS': '100000'}, stderr=subprocess.DEVNULL)"
    )
    wait_for(page, "len(ranks) == 2 and all(r.steps for r in ranks)", 40)
    until(lambda: len(rows_of(page, "step", "1-1")) > 30)
    assert "it still runs" in refusal(page, "monitor.run_alone(confirmed=True)")
    assert "One rank alone was not measured" in refusal(page, "monitor.scaling()")
    page.run("process.terminate(); process.wait()")
    wait_for(page, "not any(r.alive for r in ranks)", 15)

    # A page may ask for it, and offers to loops are looked at as before.
    assert page.value("(monitor.live_session.ranks.alone.state(20)['running'], monitor.offers)") == (False, [])
    question = refusal(page, "monitor.run_alone(seconds=5)")
    assert "-m tests.ranks.training" in question
    assert "confirmed=True" in question
    page.run("found = monitor.run_alone(seconds=5, confirmed=True)", timeout=90)
    assert page.value("[(r.job, r.number, r.world) for r in monitor.live_session.ranks.ranks]")[-1] == (2, 0, 1)
    assert page.value("found.together.ranks, found.alone.ranks") == (2, 1)
    # Both wait for their data by sleeping: the second rank costs next to nothing.
    assert 0.7 < page.value("found.efficiency") < 1.2
    assert page.value("found.alone.steps") > 40
    assert "scaling efficiency" in page.value("monitor.status()")
    assert page.value("str(monitor.scaling(1)) in monitor.status()")

    # Stopped, it leaves no note, and can be run again.
    page.run("monitor.run_alone(seconds=60, confirmed=True, wait=False)\nstopped = monitor.stop_alone()")
    assert page.value("stopped, monitor.live_session.ranks.alone.notes") == (True, {})

    # Killed, the kernel leaves nothing behind.
    page.run("monitor.run_alone(seconds=60, confirmed=True, wait=False)")
    wait_for(page, "ranks[-1].job >= 3 and ranks[-1].alive", 40)
    (alone,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "tests.ranks.training" in (process.info["cmdline"] or [])
        and "kernel_monitor.ranks.alone_run" not in process.info["cmdline"]
    ]
    os.kill(page.value("os.getpid()"), signal.SIGKILL)
    alone.wait(15)
