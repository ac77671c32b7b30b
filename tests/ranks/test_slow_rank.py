"""Four real ranks with gloo: the one that becomes slow is named with its cause, and nobody while all are even."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kernel.kernels import Page

from .slowed import SLOW

IN_TIME_S = 5.0
STEPS, AFTER = 150, 55


def trained(page: Page, port: int, cause: str, file: Path) -> list[dict[str, Any]]:
    """Train in four forked ranks; returns the events of slow ranks that came meanwhile."""
    page.run(
        f"before = len(monitor.store.events(0))\n"
        f"mp.start_processes(rank, (4, {port}, {STEPS}, {AFTER}, {cause!r}, {str(file)!r}), 4, start_method='fork')",
        timeout=90,
    )
    found: list[dict[str, Any]] = page.value(
        "[{'rank': e['rank'], 'cause': e['cause'], 'time': e['time'], 'message': e['message']} "
        "for e in monitor.store.events(0)[before:] if e['kind'] == 'slow-rank']"
    )
    return found


def test_the_slowed_rank_of_a_real_job_is_named_in_time_and_nobody_of_an_even_one(
    page: Page, port: int, tmp_path: Path
) -> None:
    page.run(
        "import torch.multiprocessing as mp\nfrom kernel_monitor import monitor\nfrom tests.ranks.slowed import rank"
    )
    even = trained(page, port, "none", tmp_path / "none")
    assert even == []
    for again, cause in enumerate(("data", "compute"), start=1):
        file = tmp_path / cause
        said = trained(page, port + again, cause, file)
        onset = page.value(f"monitor.live_session.session_time({file.read_text('utf-8')})")
        assert [(event["rank"], event["cause"]) for event in said] == [(f"1-{SLOW}", cause)], said
        assert onset < said[0]["time"] <= onset + IN_TIME_S, (onset, said)
        assert f"Rank {SLOW} is the slowest" in said[0]["message"]
    counted = page.value("[(r.job, r.number, r.steps) for r in monitor.live_session.ranks.ranks]")
    assert counted == [(1, number, True) for number in range(4)]  # one process started them: the job began again
