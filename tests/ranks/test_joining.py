"""Ranks that a notebook starts, however it does, appear in its session; their code knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.record.reader import open_session
from tests.kernel.kernels import Page

from ..waiting import until

RANKS = "[(r.job, r.number, r.world, r.steps, r.alive, r.reason) for r in monitor.live_session.ranks.ranks]"
TORCHRUN = "-m torch.distributed.run --nproc_per_node 2 --master_addr 127.0.0.1 --master_port"


def ranks(page: Page) -> list[tuple[Any, ...]]:
    return list(page.value(RANKS))


def wait_for(page: Page, condition: str, seconds: float = 20) -> None:
    """Until an expression over the cell's `ranks` is true."""
    until(
        lambda: page.value(f"(lambda ranks: bool({condition}))(monitor.live_session.ranks.ranks)"),
        seconds,
        lambda: (ranks(page), page.value("monitor.status()")),
    )


def rows_of(page: Page, part: str, rank: str) -> list[float]:
    """The finite values of a rank's series in the store."""
    code = (
        "(lambda r, n: [float(v) for v in r.values[:, r.schema.columns[n]] if v == v] if n in r.schema.columns else [])"
        f"(monitor.store.rows(), 'rank/{rank}/{part}')"
    )
    return list(page.value(code))


def test_torchrun_in_a_cell_is_seen_in_store_recording_and_pandas(page: Page, port: int) -> None:
    page.run("from kernel_monitor import monitor")
    command = f"!STEPS=110 SLOW_RANK=1 {{sys.executable}} {TORCHRUN} {port} -m tests.ranks.training"
    page.run(f"import sys\n{command}", timeout=90)
    wait_for(page, "len(ranks) == 2 and not any(r.alive for r in ranks)")
    assert [(job, number, world, steps) for job, number, world, steps, _, _ in ranks(page)] == [
        (1, 0, 2, True),
        (1, 1, 2, True),
    ]
    steps, waits = ([rows_of(page, part, f"1-{number}") for number in (0, 1)] for part in ("step", "wait"))
    assert min(map(len, steps)) > 20
    middle = [sorted(found)[len(found) // 2] for found in (*steps, *waits)]
    # Both ranks take the steps of the slow one; only that one waits for its data.
    assert all(65 < step < 120 for step in middle[:2])
    assert middle[2] < 10
    assert 45 < middle[3] < 75
    assert "ranks" in page.value("monitor.settings['charts']")
    path = page.value("monitor.recording['path']")
    page.run("monitor.stop()")
    session = open_session(Path(path))
    table = session.to_pandas()
    assert (table["rank/1-1/wait"].dropna() > 40).mean() > 0.9
    assert [(rank.id, rank.world, rank.host, rank.alive) for rank in session.snapshot().schema.ranks] == [
        ("1-0", 2, "", False),
        ("1-1", 2, "", False),
    ]


SPAWN = """
import torch.multiprocessing as mp
from tests.ranks.training import spawned
mp.spawn(spawned, (2, {port}, 120), nprocs=2)
"""
LAUNCH = """
from accelerate import notebook_launcher
def train():
    from tests.ranks import training
    training.main(120)
notebook_launcher(train, num_processes=2, use_port="{port}")
"""


@pytest.mark.parametrize("cell", [SPAWN, LAUNCH], ids=["spawn", "notebook_launcher"])
def test_processes_of_the_kernel_are_ranks_and_the_kernel_is_none(page: Page, port: int, cell: str) -> None:
    """Those that are spawned are known by their process group."""
    page.run("from kernel_monitor import monitor")
    page.run(cell.format(port=port), timeout=90)
    wait_for(page, "len(ranks) == 2 and not any(r.alive for r in ranks)")
    assert [entry[:4] for entry in ranks(page)] == [(1, 0, 2, True), (1, 1, 2, True)]
    assert min(len(rows_of(page, "step", f"1-{number}")) for number in (0, 1)) > 5
    # The kernel's own session is as it was: it measures, and a second launch is seen too.
    page.rows(more_than=page.rows())
