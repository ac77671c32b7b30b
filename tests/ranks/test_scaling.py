"""A job of two ranks and one of a single rank in the same session: the scaling efficiency, and what is refused."""

from __future__ import annotations

from tests.kernel.kernels import Page

from ..waiting import until
from .test_joining import TORCHRUN, rows_of, wait_for

START = """
import os, subprocess, sys
def start(ranks):
    words = [sys.executable, *'{torchrun}'.replace('nproc_per_node 2', f'nproc_per_node {{ranks}}').split(), '{port}',
             '-m', 'tests.ranks.training']
    return subprocess.Popen(words, env={{**os.environ, 'STEPS': '100000'}}, stderr=subprocess.DEVNULL)
"""


def refusal(page: Page, call: str) -> str:
    """The SessionError of a call."""
    page.run(
        f"try:\n    {call}\n    said = ''\n"
        "except Exception as error:\n    said = f'{type(error).__name__}: {error}'"
    )
    said: str = page.value("said")
    assert said.startswith("SessionError: "), said
    return said


def test_a_job_is_compared_with_one_rank(page: Page, port: int) -> None:
    page.run("from kernel_monitor import monitor" + START.format(torchrun=TORCHRUN, port=port))
    page.run("monitor.start()")
    assert "No job of several ranks" in refusal(page, "monitor.scaling()")
    page.run("process = start(2)")
    wait_for(page, "len(ranks) == 2 and all(r.steps for r in ranks)", 40)
    until(lambda: len(rows_of(page, "step", "1-1")) > 30)
    assert "torchrun --nproc_per_node 1" in refusal(page, "monitor.scaling()")
    page.run("process.terminate(); process.wait()")
    wait_for(page, "not any(r.alive for r in ranks)", 15)
    page.run("process = start(1)")
    wait_for(page, "len(ranks) == 3 and ranks[-1].steps", 40)
    until(lambda: len(rows_of(page, "step", "2-0")) > 60, 60)
    page.run("found = monitor.scaling()")
    assert page.value("[(r.job, r.number, r.world) for r in monitor.live_session.ranks.ranks]")[-1] == (2, 0, 1)
    assert page.value("found.together.ranks, found.alone.ranks") == (2, 1)
    # Both wait for their data by sleeping: the second rank costs next to nothing.
    assert 0.7 < page.value("found.efficiency") < 1.2
    assert page.value("found.alone.steps") > 20
    page.run("process.terminate(); process.wait()")
