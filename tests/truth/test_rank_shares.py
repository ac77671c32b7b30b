"""Jobs whose ranks have unequal batches or unequally busy GPUs are found, and none whose ranks are even."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel_monitor.analysis.results import Finding
from kernel_monitor.analysis.rules import evaluate
from kernel_monitor.rank import Rank
from kernel_monitor.store import Rows, Snapshot, Store

from .hardware import with_gpus
from .simulated_jobs import Job, job, simulate

Simulated = tuple[Job, Store, tuple[Rank, ...]]
JOBS = 40
SECONDS = 60.0


@pytest.fixture(scope="module")
def even() -> list[Simulated]:
    jobs = [replace(job(seed), cause=None) for seed in range(JOBS)]
    return [(of, *simulate(of, SECONDS)) for of in jobs]


def shares(rows: Rows) -> Finding:
    snapshot = Snapshot(rows.schema, rows.seq, rows.time, rows.values, events=[], loaders=[], facts={})
    (finding,) = evaluate(snapshot, (), only={"rank-shares"})
    return finding


def test_even_jobs_are_quiet(even: list[Simulated]) -> None:
    for of, store, ranks in even:
        found = shares(with_gpus(of, store, ranks, 0.0))
        assert (found.state, found.samples) == ("quiet", 2), (of.seed, found.evidence)


def test_unequal_batches_are_found_with_their_counts(even: list[Simulated]) -> None:
    for of, _, _ in even[:20]:
        store, _ = simulate(replace(of, more=16), 12.0)
        found = shares(store.rows())
        assert found.state == "fired", of.seed
        (evidence,) = found.evidence
        assert f"samples on rank {of.slow}," in evidence.text
        # One of n ranks with half as many again lies 1.5 n / (n + 0.5) - 1 above the mean.
        assert evidence.value == pytest.approx(100 * (1.5 * of.ranks / (of.ranks + 0.5) - 1), abs=5)


def test_a_busier_gpu_is_found(even: list[Simulated]) -> None:
    for of, store, ranks in even:
        found = shares(with_gpus(of, store, ranks, 30.0))
        assert found.state == "fired", of.seed
        if of.ranks > 2:  # of two, either lies as far from the other
            assert f"rank {of.slow}'s GPU" in found.evidence[0].text, of.seed


def test_it_abstains_without_two_ranks_or_enough_steps(even: list[Simulated]) -> None:
    of, store, ranks = even[0]
    store = simulate(of, 2.0)[0]
    assert "0 of the 1" in shares(store.rows()).missing[0]
    rows = store.rows()
    alone = replace(rows, schema=replace(rows.schema, ranks=ranks[:1]))
    assert shares(alone).missing == ("two ranks of a job: 1 joined",)
