"""Simulated jobs on several machines: what their GPUs' clocks and cores show, beside what their ranks send."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from kernel_monitor.analysis.frames import Floats, Frames
from kernel_monitor.analysis.slow_rank import WINDOW_S, SlowRank, slow_rank
from kernel_monitor.node_sources import Node
from kernel_monitor.rank import Rank
from kernel_monitor.store import Rows, Store
from kernel_monitor.store.schema import Series

from .simulated_jobs import Job

CLOCK_MHZ = 1980.0
BUSY, FULL = (10.0, 70.0), (94.0, 100.0)  # %, of a host's cores


def with_hardware(of: Job, store: Store, ranks: tuple[Rank, ...]) -> Rows:
    """The store's rows with each rank's GPU clock and utilisation and its host's busy cores; each has its own host.

    A lower clock slows its rank by as much as the job says. Every other job shows a clock a few % lower of a rank that
    is not slow, or a host that is full of a rank that is not: neither is a cause.
    """
    rng = np.random.default_rng(of.seed)
    rows = store.rows()
    late = rows.time >= of.onset
    names, columns = [], []
    usual = random.Random(of.seed).uniform(*BUSY)
    for number, rank in enumerate(ranks):
        slow = late if number == of.slow else np.zeros_like(late)
        other = of.seed % 2 == 0 and number == (of.slow + 1) % of.ranks
        clock = np.full(len(rows.time), CLOCK_MHZ * (0.96 if other else 1.0))
        busy = np.full(len(rows.time), usual)
        if of.cause == "clock":
            clock[slow] /= of.factor
        if of.cause == "cpu":
            busy[slow] = rng.uniform(*FULL)
        elif other:
            busy[:] = rng.uniform(*FULL)
        names += [f"rank/{rank.id}/gpu_clock", f"rank/{rank.id}/gpu", f"node/{_node(rank).id}/busy"]
        columns += [
            clock + rng.normal(0, 8, len(clock)),
            rng.uniform(60, 100, len(clock)),  # of its GPU
            np.clip(busy + rng.normal(0, 2, len(clock)), 0, 100),
        ]
    return with_columns(rows, dict(zip(names, columns, strict=True)), tuple(map(_node, ranks)))


def with_gpus(of: Job, store: Store, ranks: tuple[Rank, ...], more: float) -> Rows:
    """The store's rows with the utilisation of each rank's GPU, read once a second; the slow rank's is `more` % higher.

    All vary alike: around a level of the job's, lower for some seconds now and then (between epochs).
    """
    rng = np.random.default_rng(of.seed)
    rows = store.rows()
    level, spread = rng.uniform(20, 70), rng.uniform(1, 12)
    seconds = rows.time.astype(int)
    pause = np.where(seconds % 11 == 0, 0.3, 1.0)
    names = [f"rank/{rank.id}/gpu" for rank in ranks]
    columns = [
        np.clip((level + more * (place == of.slow)) * pause + rng.normal(0, spread, seconds.max() + 1)[seconds], 0, 100)
        for place in range(len(ranks))
    ]
    return with_columns(rows, dict(zip(names, columns, strict=True)), ())


def with_columns(rows: Rows, columns: dict[str, Floats], nodes: tuple[Node, ...]) -> Rows:
    """The rows with these series, new ones or others' values."""
    known = rows.schema.columns
    fresh = [name for name in columns if name not in known]
    series = tuple(Series(name, "") for name in fresh)
    schema = replace(rows.schema, series=rows.schema.series + series, nodes=nodes)
    values = np.hstack([rows.values, *(columns[name].astype(np.float32)[:, None] for name in fresh)])
    for name in columns.keys() & known.keys():
        values[:, known[name]] = columns[name]
    return replace(rows, schema=schema, values=values)


def _node(rank: Rank) -> Node:
    return Node(getattr(rank, "node", "") or f"of-{rank.host}", rank.host)


def named(rows: Rows, ranks: tuple[Rank, ...], at: float) -> SlowRank | None:
    """What the live page says at a time (s)."""
    with np.errstate(all="ignore"):
        return slow_rank(Frames(rows), ranks, at - WINDOW_S, at)
