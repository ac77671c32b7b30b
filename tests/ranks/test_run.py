"""`kernel-monitor run` and `%monitor join`: ranks that no notebook started; and kernels that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kernel_monitor.record.reader import open_session
from tests.kernel.kernels import Page

from ..waiting import until
from .conftest import ROOT
from .peers import outside
from .test_joining import TORCHRUN, ranks, wait_for

RUN = [sys.executable, "-m", "kernel_monitor", "run"]


def training(port: int) -> list[str]:
    return [sys.executable, *TORCHRUN.split(), str(port), "-m", "tests.ranks.training"]


def started(*words: str, **environment: str) -> subprocess.Popen[str]:
    variables = outside(PYTHONPATH=str(ROOT), **environment)
    return subprocess.Popen([*RUN, *words], cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True)


def test_ranks_of_another_terminal_join_a_kernel_and_outlive_it(page: Page, port: int) -> None:
    page.run("from kernel_monitor import monitor")
    folder = page.value("monitor.live_session.ranks.server.folder")
    assert folder in page.value("monitor.live_session.ranks.join_words()")
    with started("--join", folder, "--", *training(port), STEPS="400") as process:
        wait_for(page, "len(ranks) == 2 and all(r.steps for r in ranks)", 40)
        assert [entry[:4] for entry in ranks(page)] == [(1, 0, 2, True), (1, 1, 2, True)]
        kernel = page.value("__import__('os').getpid()")
        os.kill(kernel, signal.SIGKILL)
        assert process.wait(60) == 0
    # What the killed kernel left goes when the next one starts.
    assert Path(folder).exists()


def test_without_a_kernel_the_ranks_are_recorded(recordings: Path, port: int) -> None:
    process = started("--", *training(port), STEPS="120")
    _, error = process.communicate(timeout=90)
    assert process.returncode == 0, error
    path = Path(error.strip().rpartition("recorded: ")[2])
    session = open_session(path)
    assert [rank.id for rank in session.snapshot().schema.ranks] == ["1-0", "1-1"]
    assert session.to_pandas()["rank/1-0/step"].dropna().median() > 15


def test_the_commands_own_exit_status_and_errors_are_passed_on(tmp_path: Path) -> None:
    for words, status, message in (
        (["--join", str(tmp_path), "--", "true"], 2, "has no session to join"),
        ([], 2, "run needs a command"),
    ):
        process = started(*words)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, message in error) == (status, True), error
    process = started("--", sys.executable, "-c", "import sys; sys.exit(7)")
    process.communicate(timeout=60)
    assert process.returncode == 7


def test_a_rank_that_uses_nothing_of_ours_shows_its_cpu(page: Page) -> None:
    page.run(
        "import os, subprocess, sys\nfrom kernel_monitor import monitor\n"
        "busy = 'import time\\nuntil = time.monotonic() + 60\\nwhile time.monotonic() < until: pass'\n"
        "process = subprocess.Popen([sys.executable, '-c', busy], env={**os.environ, 'RANK': '0', 'WORLD_SIZE': '1'})"
    )
    cpu = "monitor.live_session.ranks.values({}, {}).get('rank/1-0/cpu', 0)"
    until(lambda: page.value(cpu) >= 2, say=lambda: ranks(page))  # others may leave it little
    assert ranks(page) == [(1, 0, 1, False, True, None)]
    page.run("process.kill(); process.wait()")
    wait_for(page, "not ranks[0].alive")
    assert ranks(page)[0][5] == "its process has ended"
