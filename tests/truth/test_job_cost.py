"""Each host of a job's ranks costs what a machine costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_monitor.analysis import analyse
from kernel_monitor.report.page import render

from .simulated_jobs import job, simulate


def test_a_job_costs_all_of_its_machines() -> None:
    of = replace(job(2), ranks=4, cause=None)
    here, spread = (
        simulate(replace(of, hosts=hosts), 20.0)[0].snapshot([], {"currency": "€"}) for hosts in (False, True)
    )
    (one,), (four,) = (analyse(snapshot, price=3.6).costs for snapshot in (here, spread))
    assert (one.segment, one.per_hour) == ("job 1", 3.6)
    assert four.per_hour == pytest.approx(14.4)
    step = 1e-3 * (of.wait + of.forward + of.backward + of.optimizer)
    assert one.per_step == pytest.approx(step * 0.001, rel=0.15)  # 0.1 ct a second; ranks wait for the longest of four
    assert one.per_thousand == pytest.approx(1000 * one.per_step / (4 * 32), rel=0.05)
    assert four.per_thousand == pytest.approx(4 * one.per_thousand, rel=0.05)
    assert four.basis.startswith("4 ranks on 4 machines: about ")
    assert analyse(here).costs == ()
    page = render(replace(spread, facts={**spread.facts, "price": 3.6}))
    assert "4 ranks on 4 machines" in page
    assert ">job 1<" in page
