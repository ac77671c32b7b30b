"""Jobs that start again, by themselves or with more ranks, and two at once."""

from __future__ import annotations

from pathlib import Path

from tests.kernel.kernels import Page

from ..waiting import until
from .test_joining import ranks, rows_of, wait_for

LOOP = """
import os, sys, time
from kernel_monitor import watch_loader
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for number in watch_loader(list(range(500))):
    time.sleep(0.01)
    if number == 200 and first and os.environ["RANK"] == os.environ.get("FAILING_RANK"):
        sys.exit("the first try fails")
"""
START = """
import os, subprocess, sys
from kernel_monitor import monitor

def start(world, **environment):
    words = "-m torch.distributed.run --standalone --max_restarts 1 --nproc_per_node".split()
    return subprocess.Popen([sys.executable, *words, str(world), SCRIPT], env={**os.environ, **environment})
"""
PIDS = "sorted(p.identity.pid for p in monitor.live_session.ranks.server.jobs._processes)"


def test_a_restarted_job_goes_on_in_its_rows_and_one_of_another_size_has_its_own(page: Page, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    page.run(f"SCRIPT = {str(script)!r}\n{START}\nfirst, second = start(2, FAILING_RANK='1'), start(3)")
    wait_for(page, "len(ranks) == 5 and all(r.steps and r.alive for r in ranks)", 40)
    assert sorted(entry[2] for entry in ranks(page)) == [2, 2, 3, 3, 3]
    job = page.value("next(r.job for r in monitor.live_session.ranks.ranks if r.world == 2)")
    before = set(page.value(PIDS))  # it fails, and its ranks are started again
    until(lambda: len(set(page.value(PIDS)) - before) >= 2, 40, lambda: ranks(page))
    wait_for(page, f"all(r.alive and r.steps for r in ranks if r.job == {job})", 20)
    page.run("status = first.wait(60), second.wait(60)", timeout=120)
    assert page.value("sum(status)") == 0
    wait_for(page, "not any(r.alive for r in ranks)")
    # Still two jobs, and five rows.
    assert sorted(entry[0] for entry in ranks(page)) == sorted([job, job, *[3 - job] * 3])
    assert {entry[5] for entry in ranks(page)} <= {"it has finished", "its process has ended"}
    assert len(rows_of(page, "step", f"{job}-1")) > 10
