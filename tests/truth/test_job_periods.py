"""Patterns in the steps of ranks are found with the part that follows them; other sequences have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kernel_monitor.analysis.rules import evaluate
from kernel_monitor.analysis.slow_rank import JobPeriod
from kernel_monitor.rank import Row
from kernel_monitor.ranks.jobs import Jobs
from kernel_monitor.ranks.rank_frames import Frame, Identity
from kernel_monitor.ranks.rank_tracker import JobPeriods
from kernel_monitor.steps.measured_step import WARM_UP
from kernel_monitor.store import Store

from .simulated_jobs import HELLO

Floats = npt.NDArray[np.float64]
RANKS = 4
EPOCH = 29  # batches


def watched(
    waits: Floats, forwards: Floats, backwards: Floats, *, warm: bool = True
) -> tuple[list[JobPeriod], list[dict[str, Any]]]:
    """What is found while ranks take these steps; each s[ranks, steps]. Who is late delays the others' backward."""
    now = 0.0
    jobs = Jobs(clock=lambda: now)
    events: list[dict[str, Any]] = []
    periods = JobPeriods(lambda kind, at, **fields: events.append({"kind": kind, "time": at, **fields}))
    found: dict[str, JobPeriod] = {}
    own = waits + forwards
    backwards = own.max(axis=0) - own + backwards.max(axis=0)
    due = 0.5
    sent: list[list[Row]] = [[] for _ in range(len(waits))]
    for number in range(waits.shape[1]):
        now += float((own + backwards)[0, number]) + 0.001
        flags = WARM_UP if warm and number % EPOCH == 0 else 0
        for rank in range(len(waits)):
            parts = (waits[rank, number], forwards[rank, number], backwards[rank, number])
            times = (parts[0], sum(parts) + 0.001, np.nan, *parts[1:], 0.001)
            sent[rank].append((now, number // EPOCH, number % EPOCH, 8, *times, flags))
        if now >= due:
            due = now + 0.5
            for rank, rows in enumerate(sent):
                identity = Identity("here", "host", 100 + rank, 1.0, 1, rank, len(waits), "job")
                jobs.heard(Frame(identity, now, 1.0, 1.0, 0, 0, 0.0, 0.0, None, rows))
            sent = [[] for _ in sent]
            periods.refresh(now, jobs.recent)
            found |= {period.sentence: period for period in periods.found.values()}
    return list(found.values()), events


def even(seed: int, steps: int) -> tuple[Floats, Floats, Floats]:
    """Steps of 40 ms that vary a little."""
    rng = np.random.default_rng(seed)
    return tuple(mean * rng.normal(1, 0.06, (RANKS, steps)).clip(0.7, 1.3) for mean in (0.004, 0.012, 0.024))  # type: ignore[return-value]


def test_the_published_alternation_of_the_backward_pass_is_found() -> None:
    waits, forwards, backwards = even(1, 120)
    backwards[:] = np.where(np.arange(120) % 2, 28.5, 8.4)
    found, events = watched(waits, forwards, backwards)
    assert {(period.period.steps, period.part, period.rank) for period in found} == {(2, "backward", None)}
    assert [(event["kind"], event["job"], event["steps"]) for event in events] == [("step-period", 1, 2)]
    assert "8,4" in events[0]["message"]
    assert "it is the backward pass that follows it" in events[0]["message"]


@pytest.mark.parametrize("length", range(2, 9))
def test_one_ranks_wait_that_follows_a_pattern_is_named(length: int) -> None:
    waits, forwards, backwards = even(length, 300)
    waits[2, ::length] += 0.04
    found, events = watched(waits, forwards, backwards)
    assert {(period.period.steps, period.part, period.rank) for period in found} == {(length, "wait", 2)}
    assert len(events) == 1
    assert "rank 2's wait for data" in events[0]["message"]


def test_a_pattern_that_ends_is_no_longer_shown() -> None:
    rows: list[Row] = []
    store = Store(capacity=10, interval=0.1, origin=0.0)
    store.set_host(HELLO)
    jobs = Jobs()
    jobs.heard(Frame(Identity("here", "host", 1, 1.0, 1, 0, 1, "job"), 0, 1.0, 1.0, 0, 0, 0.0, 0.0, None, []))
    (rank,) = jobs.ranks()
    periods = JobPeriods(store.add_event)
    for look in range(8):
        start = 20 * look
        slow = 1 if look < 4 else 0
        lengths = [0.1 * (1 + slow * (n % 2)) for n in range(80)]
        nan = np.nan
        rows[:] = [(float(start + n), 0, n, 8, 0.0, length, nan, nan, nan, nan, 0) for n, length in enumerate(lengths)]
        periods.refresh(3.0 * look, lambda: {rank: rows})
        assert bool(periods.found) == (1 <= look < 5), look
    store.set_ranks((rank,))
    (finding,) = evaluate(store.snapshot([], {}), (), only={"rank-step-period"})
    assert finding.state == "fired"
    assert "The steps of job 1 follow a pattern of 2" in finding.evidence[0].text


def test_other_sequences_have_no_pattern() -> None:
    kinds = ("even", "drift", "lognormal", "bursts", "spikes", "epochs", "epochs without a flag", "two modes")
    alarms = []
    for number in range(12 * len(kinds)):
        kind, steps = kinds[number % len(kinds)], 300
        waits, forwards, backwards = even(1000 + number, steps)
        rng = np.random.default_rng(number)
        rank = number % RANKS
        match kind:
            case "drift":
                forwards *= np.linspace(1, rng.uniform(0.3, 3), steps)
            case "lognormal":
                waits[rank] = 0.01 * np.exp(rng.normal(0, 1, steps))
            case "bursts":  # some steps in a row, now and then
                waits[rank] += 0.05 * (np.convolve(rng.uniform(size=steps) < 0.05, np.ones(6), mode="same") > 0)
            case "spikes":
                waits[rank] += 0.3 * (rng.uniform(size=steps) < 0.06)
            case "epochs" | "epochs without a flag":
                waits[:, ::EPOCH] += 0.5
            case "two modes":
                forwards[rank] += 0.03 * (rng.uniform(size=steps) < 0.5)
        found, events = watched(waits, forwards, backwards, warm=kind != "epochs without a flag")
        alarms += [(kind, number, period.sentence) for period in found]
        assert len(events) == len(found)
    assert alarms == []
