"""Of 200 simulated jobs whose slow rank is known: the right rank and cause in at least 195, within five seconds.

Where ranks merely wait for each other nobody is named, not once.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernel_monitor.analysis.rules import evaluate
from kernel_monitor.analysis.slow_rank import SlowRank
from kernel_monitor.rank import Rank
from kernel_monitor.store import Store

from .hardware import named, with_hardware
from .simulated_jobs import Job, job, job_on_hosts, simulate

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")

Simulated = tuple[Job, Store, tuple[Rank, ...]]
JOBS, RIGHT = 200, 195
IN_TIME_S = 5.0
LASTED_S = 14.0


def answer(of: Job, found: SlowRank | None) -> tuple[int | None, str | None]:
    return (None, None) if found is None else (found.rank.number, found.cause)


@pytest.fixture(scope="module")
def results() -> list[Simulated]:
    return [(of, *simulate(of, LASTED_S)) for of in map(job, range(JOBS))]


def test_the_right_rank_and_cause_are_named_within_five_seconds(
    results: list[Simulated],
) -> None:
    wrong = []
    for of, store, ranks in results:
        truth = (of.slow, of.cause) if of.cause else (None, None)
        said = answer(of, named(store.rows(), ranks, of.onset + IN_TIME_S))
        if said != truth:
            wrong.append((of.seed, truth, said))
    assert {of.cause for of, _, _ in results} == {"data", "compute", None}
    assert JOBS - len(wrong) >= RIGHT, wrong


def test_nobody_is_named_where_ranks_merely_wait_for_each_other(
    results: list[Simulated],
) -> None:
    """At every half second of every job, until somebody is slow."""
    named_wrongly = []
    for of, store, ranks in results:
        until = LASTED_S if of.cause is None else of.onset
        for at in np.arange(2.0, until, 0.5):
            found = named(store.rows(), ranks, float(at))
            if found is not None:
                named_wrongly.append((of.seed, float(at), found.sentence))
    assert named_wrongly == []


def test_the_rule_names_them_in_a_recorded_session(results: list[Simulated]) -> None:
    right = 0
    for of, store, _ in results:
        snapshot = store.snapshot([], {})
        with np.errstate(all="ignore"):
            (finding,) = [found for found in evaluate(snapshot, ()) if found.rule == "slow-rank"]
        words = " ".join(evidence.text for evidence in finding.evidence)
        if of.cause is None:
            right += finding.state == "quiet"
        else:
            cause = "waits for its data" if of.cause == "data" else "own compute"
            right += finding.state == "fired" and f"Rank {of.slow} of job 1 " in words and cause in words
    assert right >= RIGHT


def test_a_slow_gpu_clock_and_a_full_host_are_told_apart_from_other_compute() -> None:
    """As above, on several hosts; every other job has a slow clock or a full host that delays nobody."""
    wrong, causes, named_wrongly = [], set(), []
    for of in map(job_on_hosts, range(JOBS)):
        store, ranks = simulate(of, LASTED_S)
        rows = with_hardware(of, store, ranks)
        truth = (of.slow, of.cause) if of.cause else (None, None)
        found = named(rows, ranks, of.onset + IN_TIME_S)
        causes.add(of.cause)
        if answer(of, found) != truth:
            wrong.append((of.seed, truth, answer(of, found)))
        if found is not None and of.cause in ("clock", "cpu"):
            assert found.figures in found.sentence
        until = LASTED_S if of.cause is None else of.onset
        named_wrongly += [(of.seed, at) for at in np.arange(2.0, until, 1.0) if named(rows, ranks, float(at))]
    assert causes == {"data", "compute", "clock", "cpu", None}
    assert JOBS - len(wrong) >= RIGHT, wrong
    assert named_wrongly == []
