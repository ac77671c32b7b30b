"""Slow readers, closed tabs and second kernels: nobody who looks may slow the sampling, the cell or another page."""

from __future__ import annotations

import subprocess
import sys
import time
from subprocess import PIPE

from .kernels import Page, kernel

STEPS = (
    "import time\n_n, _end = 0, time.monotonic() + 2\nwhile time.monotonic() < _end:\n    sum(range(200)); _n += 1\n"
)


def _cell_rate(page: Page) -> float:
    """How many small steps a cell takes in two seconds, over what a process of its own takes in the same two.

    A machine that is half as fast a few seconds later is so for both.
    """
    with subprocess.Popen([sys.executable, "-c", f"input()\n{STEPS}print(_n)"], stdin=PIPE, stdout=PIPE) as beside:
        page.start(STEPS)
        alone, _ = beside.communicate(b"\n")
        return float(page.value("_n")) / float(alone)


def test_a_page_that_reads_nothing_slows_neither_cell_nor_sampler_nor_another_page(page: Page) -> None:
    alone = _cell_rate(page)
    slow = Page(page.manager)
    try:
        slow.ask("subscribe", client="slow")
        page.ask("subscribe", client="quick")
        page.iopub(0.5)
        before = page.ask("hello")["session"], page.value("__import__('kernel_monitor').monitor.store.last_seq")
        # The slow one takes nothing from its socket from here on.
        frames = page.frames(4)
        numbers = [message["content"]["seq"] for message in frames]
        # Three times the one in eight that a quiet machine may miss.
        assert len(numbers) >= 25
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[-1] > before[1]
        beside = _cell_rate(page)
        # Two rates of two seconds each: a reader that holds the loop up would stop it for longer.
        assert beside > 0.5 * alone
        # It skipped nothing that it cannot know of: what it reads at last has its numbers.
        late = [message["content"]["seq"] for message in slow.frames(2)]
        assert late == sorted(set(late))
        assert late[0] <= numbers[0]
    finally:
        slow.close()


def test_a_page_that_vanishes_costs_nothing_after_its_lease(page: Page) -> None:
    page.run("import kernel_monitor.stream.hub as hub\nhub.LEASE_S = 1.5")
    vanished = Page(page.manager)
    vanished.ask("subscribe", client="tab")
    assert vanished.frames(1)
    vanished.close()
    time.sleep(2)
    page.iopub(0.3)
    assert page.iopub(1.5) == []
    assert page.ask("hello")["running"] is True


def test_two_kernels_measure_apart(page: Page) -> None:
    with kernel() as other:
        other.run("%load_ext kernel_monitor\n%monitor start")
        assert page.ask("hello")["session"] != other.ask("hello")["session"]
        page.ask("subscribe", client="one")
        other.ask("subscribe", client="two")
        other.run("%monitor stop")
        assert page.frames(1.5)
        other.iopub(0.5)
        assert other.frames(1) == []
        other.run("%monitor start")
        sessions = {message["content"]["session"] for message in page.frames(1.5)}
        assert sessions == {page.ask("hello")["session"]}
