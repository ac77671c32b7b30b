"""The scaling efficiency of simulated jobs, whose rates are known, and what is said where it cannot be known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kernel_monitor.analysis.job_figures import scaling
from kernel_monitor.analysis.rules import evaluate
from kernel_monitor.errors import SessionError

from .simulated_jobs import Job, job, simulate


@pytest.mark.parametrize("seed", range(6))
def test_the_efficiency_is_that_of_the_simulation(seed: int) -> None:
    """Ranks that wait for each other take the longest of their times: what one alone does not lose."""
    of = replace(job(seed), cause=None)
    together, _ = simulate(of, 20.0)
    single, _ = simulate(replace(of, ranks=1), 20.0)
    found = scaling(together.rows(), other=single.rows())
    assert (found.together.ranks, found.alone.ranks) == (of.ranks, 1)
    for side in (found.together, found.alone):
        assert side.seconds == pytest.approx(18, abs=1.5)
        assert side.batch == pytest.approx(32, rel=0.03)
        assert side.rate == pytest.approx(side.images / side.seconds, rel=0.01)
    step = 1e-3 * (of.wait + of.forward + of.backward + of.optimizer)
    assert found.alone.rate == pytest.approx(32 / step, rel=0.04)
    assert 0.75 < found.efficiency < 1.02
    assert f"{100 * found.efficiency:.0f} %" in str(found)


def test_a_slow_rank_costs_all_of_them_and_the_rule_says_so() -> None:
    of = replace(job(2), cause="compute", onset=0.0, factor=2.0)
    together, ranks = simulate(of, 20.0)
    single, (alone,) = simulate(replace(of, ranks=1, cause=None), 20.0)
    found = scaling(together.rows(), other=single.rows())
    assert found.efficiency < 0.7
    snapshot = together.snapshot([], {})
    (finding,) = evaluate(snapshot, (), only={"scaling-efficiency"})
    assert finding.state == "abstained"
    assert "One rank alone was not measured" in finding.missing[0]
    # Both in one session, one after the other.
    store, _ = simulate(of, 20.0)
    store.set_ranks((*ranks, replace(alone, id="2-0", job=2)))
    later = single.rows()
    names = {name: column for name, column in later.schema.columns.items() if name.startswith("rank/1-0/")}
    for time, row in zip(later.time, later.values, strict=True):
        values = {name.replace("/1-0/", "/2-0/"): float(row[column]) for name, column in names.items()}
        store.append(float(time) + 30, [], {name: value for name, value in values.items() if value == value})
    (finding,) = evaluate(store.snapshot([], {}), (), only={"scaling-efficiency"})
    assert finding.state == "fired"
    assert finding.evidence[0].value == pytest.approx(100 * found.efficiency, abs=3)


def test_what_cannot_be_compared_is_said() -> None:
    of: Job = replace(job(2), cause=None)
    together, single = simulate(of, 12.0)[0].rows(), simulate(replace(of, ranks=1), 12.0)[0].rows()
    with pytest.raises(SessionError, match="no job 7 of several ranks"):
        scaling(together, 7)
    with pytest.raises(SessionError, match="No job of several ranks"):
        scaling(single)
    with pytest.raises(SessionError, match="One rank alone was not measured"):
        scaling(together)
    short, _ = simulate(of, 2.0)
    with pytest.raises(SessionError, match="too few steps yet"):
        scaling(short.rows(), other=single)
    smaller = simulate(replace(of, ranks=1, slow=0, more=16), 12.0)[0].rows()
    sentence = scaling(together, other=smaller).sentence
    assert re.search(r"Their batches differ: about 32 samples in a step, 4[789] alone\.", sentence)
