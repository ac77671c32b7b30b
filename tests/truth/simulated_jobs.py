"""Simulated jobs: ranks that wait for data, compute and average gradients, one of them perhaps slowed.

Each step of a rank is a wait for data, then copy, forward and backward of its own; the backward ends with a collective,
in which all wait for the last; then the optimizer. What a rank would send goes through the kernel's own code into a
store, by a clock of the simulation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernel_monitor.analysis.slow_rank import Cause
from kernel_monitor.rank import Rank, Row, rank_series
from kernel_monitor.ranks.jobs import Jobs
from kernel_monitor.ranks.rank_frames import Frame, Identity
from kernel_monitor.store import Store

PERIOD_S = 0.5
ROW_S = 0.1
HELLO = {"series": [], "interval": ROW_S, "cpus": [], "gpus": [], "gpu_reason": "simulated", "host": {}}


@dataclass(frozen=True)
class Job:
    """What is simulated; durations in ms."""

    seed: int
    ranks: int
    cause: Cause | None
    slow: int  # the slowed rank, where there is a cause
    onset: float  # s, when it becomes slow
    wait: float
    forward: float
    backward: float
    optimizer: float
    noise: float  # standard deviation of each duration, of its mean
    factor: float  # of the slowed rank's compute; its data takes this times the step longer, less one
    hosts: bool = False  # whether each rank has a host of its own; else all are on one
    more: int = 0  # samples in each of the slow rank's batches beyond the others' 32


def job(seed: int) -> Job:
    """The job of a seed."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 8)
    return Job(
        seed=seed,
        ranks=ranks,
        cause=rng.choice(("data", "compute", None)),
        slow=rng.randrange(ranks),
        onset=rng.uniform(4.0, 6.0),
        wait=rng.uniform(0.5, 20.0),
        forward=rng.uniform(8.0, 60.0),
        backward=rng.uniform(15.0, 120.0),
        optimizer=rng.uniform(1.0, 10.0),
        noise=rng.uniform(0.01, 0.12),
        factor=rng.uniform(1.4, 3.0),
    )


def job_on_hosts(seed: int) -> Job:
    """The job of a seed, on several hosts, where a slow rank's hardware may be why."""
    cause: Cause | None = random.Random(seed + 2_000_000).choice(("data", "compute", "clock", "cpu", None))
    return replace(job(seed), cause=cause, hosts=True)


def steps(of: Job, seconds: float) -> Iterator[list[tuple[float, Row]]]:
    """Step by step, each rank's end (s) and row."""
    rng = random.Random(of.seed + 1_000_000)
    free = [0.0] * of.ranks  # when each rank's loop asks for its next batch, s
    number = 0
    whole = of.wait + of.forward + of.backward + of.optimizer

    def lasts(mean: float) -> float:
        # Durations have a tail: now and then one takes twice as long.
        return 1e-3 * max(0.1 * mean, rng.gauss(mean, of.noise * mean)) * (2.0 if rng.random() < 0.01 else 1.0)

    while min(free) < seconds:
        began = list(free)
        parts: list[list[float]] = []
        for rank in range(of.ranks):
            slowed = of.cause is not None and rank == of.slow and began[rank] >= of.onset
            compute = of.factor if slowed and of.cause != "data" else 1.0
            wait = of.wait + (0.5 * (of.factor - 1.0) * whole if slowed and of.cause == "data" else 0.0)
            durations = (wait, compute * of.forward, compute * of.backward, compute * of.optimizer)
            parts.append([lasts(duration) for duration in durations])
        ready = [began[rank] + sum(parts[rank][:3]) for rank in range(of.ranks)]
        met = max(ready)
        found = []
        for rank in range(of.ranks):
            wait, forward, _, optimizer = parts[rank]
            backward = met - began[rank] - wait - forward
            free[rank] = met + optimizer
            step = free[rank] - began[rank]
            images = 32 + (of.more if rank == of.slow else 0)
            row = (free[rank], 0, number, images, wait, step, float("nan"), forward, backward, optimizer, 0)
            found.append((free[rank], row))
        number += 1
        yield found


def simulate(of: Job, seconds: float) -> tuple[Store, tuple[Rank, ...]]:
    """The store after so many seconds, and the ranks in it."""
    now = 0.0
    jobs = Jobs(clock=lambda: now)
    store = Store(capacity=6000, interval=ROW_S, origin=0.0)
    store.set_host(HELLO)
    sent: list[list[Row]] = [[] for _ in range(of.ranks)]
    source = steps(of, seconds + 5)
    pending: list[tuple[float, int, Row]] = []
    # Frames of different ranks come at different times of the period.
    due = [PERIOD_S * (rank + 1) / of.ranks for rank in range(of.ranks)]
    last = 0.0
    shown: tuple[Rank, ...] = ()
    for tick in range(1, round(seconds / ROW_S) + 1):
        now = tick * ROW_S
        while last < now:
            for rank, (end, row) in enumerate(next(source)):
                pending.append((end, rank, row))
                last = max(last, end)
        for end, rank, row in [entry for entry in pending if entry[0] <= now]:
            sent[rank].append(row)
            pending.remove((end, rank, row))
        for rank in range(of.ranks):
            if now >= due[rank]:
                due[rank] += PERIOD_S
                host = f"host-{rank}" if of.hosts else "host"
                identity = Identity(f"where {host} is", host, 100 + rank, 1.0, 1, rank, of.ranks, "simulated")
                images = sum(row[3] for row in sent[rank]) / PERIOD_S
                frame = Frame(identity, now, 50.0, images, 0, 0, 0.0, 0.0, None, sent[rank])
                sent[rank] = []
                jobs.heard(frame)
        ranks = tuple(jobs.ranks())
        if ranks != shown:
            shown = ranks
            store.set_ranks(ranks)
        names = {name for rank in ranks for name, _ in rank_series(rank.id, steps=True)}
        store.append(now, [], {name: value for name, value in jobs.values().items() if name in names})
    return store, shown
